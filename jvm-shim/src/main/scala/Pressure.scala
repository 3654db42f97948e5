package org.apache.spark.sql.millpond

/** What a store does when the memory budget of its executor is exceeded and it holds more than its share: it drops rows that the disk tier
  * has, the least recently used ones first; if a batch's own writes are too many, it writes them down in mid-batch and goes on with empty
  * tables. */
private[millpond] object Pressure {
  private val Headroom =
    16 // a sixteenth of the share is freed at once, so that not every write looks for room

  /** Between batches: `engine` has just begun one and written nothing. */
  def atBegin(engine: StoreEngine): Unit = {
    val share = engine.budget.fairShareBytes
    if (engine.usedBytes > share) {
      if (engine.isHeap) {
        engine.synchronized(rebuild(engine, Long.MaxValue)) // gives back what an aborted batch took
        refuse(engine)
      } else if (engine.dirtyBytes > share / 4) engine.diskLock.during(Snapshots.flush(engine))
      if (!engine.isHeap) engine.synchronized {
        // freed records are used again, but only new tables give memory back to the system
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

  /** After a write of a running batch; no lock is held. */
  def afterWrite(engine: StoreEngine): Unit = {
    val share = engine.budget.fairShareBytes
    if (engine.synchronized(mustSpill(engine, share))) engine.diskLock.during {
      Snapshots.flush(
        engine) // what is committed can be evicted then; and if the batch must go down, it goes on top
      if (engine.synchronized(mustSpill(engine, share))) {
        Snapshots.keepForLater(engine)
        engine.synchronized(if (mustSpill(engine, share)) spill(engine))
      }
    }
  }

  private def mustSpill(engine: StoreEngine, share: Long): Boolean = {
    def over: Boolean =
      engine.isWriting && (engine.liveBytes > share || engine.usedBytes > 2 * share)
    over && {
      if (engine.isHeap) refuse(engine)
      evict(engine, share)
      over
    }
  }

  /** For a store that may drop nothing. */
  def refuse(engine: StoreEngine): Unit = if (engine.budget.isExceeded)
    throw MillpondError.of(
      "MEMORY_EXHAUSTED",
      s"store ${engine.context.label} keeps its state in memory alone (backend=heap), and that exceeds memory.budget, " +
        s"${engine.budget.limitBytes} bytes for all stores of this executor.",
      hint = "Raise the option memory.budget, or set backend to rocksdb: the state stays as it is."
    )

  private def evict(engine: StoreEngine, share: Long): Unit = if (!engine.nothingToEvict) {
    val wanted = engine.liveBytes - (share - share / Headroom)
    if (wanted > 0) {
      engine.endWarmUp()
      var left = wanted
      engine.families.values.forEach(f =>
        if (left > 0) left -= f.table.evict(left, engine.flushed.toInt))
      // what is left is dirty, or the running batch's own: not looked for again until something is flushed
      if (left > 0) engine.nothingToEvict = true
      if (left < wanted) engine.metrics.evictedBytes += wanted - left
    }
  }

  /** New tables with what the disk tier has not, and about `keepBytes` of what was used lately; of a store without one, with everything. */
  private def rebuild(engine: StoreEngine, keepBytes: Long): Unit = {
    engine.endWarmUp()
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

  /** Take what the running batch wrote so far to the disk tier. From here on the batch can only be committed, or undone by a reload. */
  private def spill(engine: StoreEngine): Unit = {
    engine.endWarmUp()
    val dir = engine.context.generationDir(engine.generation)
    val segments = engine.batchLog.addSegments(dir, engine.version + 1, engine.batchId)
    engine.spilledVersion = engine.version + 1
    var done = false
    try { new Flush(engine.disk, dir, Flush.mostBytes(engine.budget)).run(segments); done = true }
    finally if (!done)
        engine.loaded = false // the disk tier may hold a part of the batch, which is at its end
    engine.families.values.forEach { f =>
      val full = f.table
      f.table = new Table(engine.budget, f.kind.shape)
      f.table.lack()
      full.retire()
    }
    engine.nothingToEvict = false
    engine.metrics.spills += 1
  }
}
