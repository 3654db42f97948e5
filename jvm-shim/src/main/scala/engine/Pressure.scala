package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.base.MillpondError

/** Gives memory back when the executor exceeds its memory budget and the store holds more than
  * its share. The store first drops rows that the disk tier has, the least recently used ones
  * first. If the running batch itself is too large, the store spills it to the disk tier and goes
  * on with empty tables. */
private[engine] object Pressure {
  // an eviction frees a sixteenth of the share, so that not every write must evict
  private val Headroom = 16

  /** Between batches: `engine` has just begun one and written nothing. */
  def atBegin(engine: StoreEngine): Unit = {
    val share = engine.budget.fairShareBytes
    if (engine.usedBytes > share) {
      if (engine.isHeap) {
        engine.synchronized(rebuild(engine, Long.MaxValue)) // gives back what an aborted batch took
        refuse(engine)
      } else if (engine.dirtyBytes > share / 4) engine.diskLock.during(Snapshots.flush(engine))
      if (!engine.isHeap) engine.synchronized {
        // a table uses freed records again; only a new table gives memory back to the system
        if (engine.usedBytes > share + share / 4) rebuild(engine, share / 2)
        else evict(engine, share)
      }
    }
  }

  /** Whether a row that was read from the disk tier may be kept. The engine's monitor is held. */
  def admits(engine: StoreEngine): Boolean = !engine.budget.isExceeded || {
    val share = engine.budget.fairShareBytes
    if (engine.liveBytes > share) evict(engine, share)
    engine.liveBytes <= share
  }

  /** After a write of a running batch. Callers hold no lock. */
  def afterWrite(engine: StoreEngine): Unit = {
    val share = engine.budget.fairShareBytes
    if (engine.synchronized(mustSpill(engine, share))) engine.diskLock.during {
      // afterwards committed rows can be evicted, and a spill comes after them in the disk tier
      Snapshots.flush(engine)
      if (engine.synchronized(mustSpill(engine, share))) {
        Snapshots.keepForLater(engine)
        engine.synchronized(if (mustSpill(engine, share)) spill(engine))
      }
    }
  }

  private def mustSpill(engine: StoreEngine, share: Long): Boolean = {
    def over: Boolean =
      engine.batch.isWriting && (engine.liveBytes > share || engine.usedBytes > 2 * share)
    over && {
      if (engine.isHeap) refuse(engine)
      evict(engine, share)
      over
    }
  }

  /** Refuses to go on: this store may drop nothing. */
  def refuse(engine: StoreEngine): Unit = if (engine.budget.isExceeded)
    throw MillpondError.of(
      "MEMORY_EXHAUSTED",
      s"store ${engine.context.label} keeps its state in memory alone (backend=heap), and that " +
        "exceeds memory.budget, " +
        s"${engine.budget.limitBytes} bytes for all stores of this executor.",
      hint = "Raise the option memory.budget, or set backend to rocksdb: the state stays as it is."
    )

  private def evict(engine: StoreEngine, share: Long): Unit = if (!engine.nothingToEvict) {
    val wanted = engine.liveBytes - (share - share / Headroom)
    if (wanted > 0) {
      engine.warmUp.end()
      var left = wanted
      engine.families.values.forEach(f =>
        if (left > 0) left -= f.table.evict(left, engine.flushed.toInt))
      // the rest is dirty, or belongs to the running batch: evict again only after the next flush
      if (left > 0) engine.nothingToEvict = true
      if (left < wanted) engine.metrics.evictedBytes += wanted - left
    }
  }

  /** Rebuild the tables. Dirty rows stay, and about `keepBytes` of rows that were used lately. A
    * store without a disk tier keeps all rows. */
  private def rebuild(engine: StoreEngine, keepBytes: Long): Unit = {
    engine.warmUp.end()
    val flushed = engine.flushed.toInt
    var room = keepBytes
    engine.families.values.forEach { f =>
      val table = f.table
      f.table = table.rebuild(
        { record =>
          val dirty = table.stamp(record) > flushed
          val keep =
            dirty || engine.isHeap || (table.wasUsed(record) && table.isPresent(record) && room > 0)
          if (keep) room -= table.keyLength(record) + math.max(0, table.valueLength(record)) + 64
          keep
        },
        (address, _) => f.prefixLength(null, address)
      )
    }
    engine.nothingToEvict = false
    engine.metrics.shrinks += 1
  }

  /** Move the writes of the running batch to the disk tier. Afterwards only a commit or a reload
    * can end the batch. */
  private def spill(engine: StoreEngine): Unit = {
    engine.warmUp.end()
    val dir = engine.context.generationDir(engine.generation)
    val segments = engine.batchLog.addSegments(dir, engine.version + 1, engine.batch.id)
    engine.spilledVersion = engine.version + 1
    var done = false
    try { EngineTier.flush(engine).run(segments); done = true }
    // the disk tier may hold a part of the batch, which cannot go on
    finally if (!done) engine.loaded = false
    engine.families.values.forEach(_.giveUpRows())
    engine.nothingToEvict = false
    engine.metrics.spills += 1
  }
}
