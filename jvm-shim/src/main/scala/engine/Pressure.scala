package org.apache.spark.sql.millpond.engine

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Daemons, MillpondError, Seams}

/** Gives memory back when the executor exceeds its memory budget and the store holds more than
  * its share. The store first drops rows that the disk tier has, the least recently used ones
  * first. If the running batch itself is too large, the store spills it to the disk tier and goes
  * on with empty tables. */
private[engine] final class Pressure(store: StoreView, batch: RunningBatch, batchLog: BatchLog,
    snapshots: Snapshots, warmUp: WarmUp) extends Logging {
  import Pressure._
  import store.{budget, families, status}

  private var nothingToEvict = false // until the next flush
  private var sparedByScan = false // or until no iterator is open
  private var spilled = 0L
  private val isFlushing = new AtomicBoolean // behind a batch, or about to

  /** A version of which the disk tier holds a part, although it may not be committed yet. */
  def spilledVersion: Long = spilled

  /** The disk tier has more rows: memory may drop them. */
  def flushed(): Unit = {
    check()
    nothingToEvict = false
  }

  /** Memory and disk tier are empty. */
  def reset(): Unit = {
    flushed()
    spilled = 0L
  }

  /** Between batches: the store has just begun one and written nothing. Callers hold no lock. */
  def atBegin(): Unit = {
    val held = store.synchronized(heldBytes)
    store.share.begin(held)
    if (budget.isExceeded)
      try giveBack(ofRows(store.share.bytes(held)))
      finally store.context.events.publish()
    else if (budget.isTight && !store.isHeap) prepare(ofRows(store.share.beforeExceeded(held)))
  }

  /** Rows that memory may soon have to drop should be on disk by then. */
  private def prepare(share: Long): Unit =
    if (store.committed.mustFlushBehind(share)) flushBehind()

  private def giveBack(share: Long): Unit =
    if (store.synchronized(families.usedBytes) > share) {
      if (store.isHeap) {
        store.synchronized(rebuild(Long.MaxValue)) // gives back what an aborted batch took
        refuse()
      } else if (store.committed.dirtyBytes > share / 4) {
        // new tables keep dirty rows, so they would be as large again
        if (store.synchronized(families.usedBytes) > share + share / 4)
          store.diskLock.during(snapshots.flush())
        else prepare(share)
      }
      if (!store.isHeap) store.synchronized {
        // a table uses freed records again; only a new table gives memory back to the system
        if (families.usedBytes > share + share / 4) rebuild(share / 2)
        else evict(share)
      }
    }

  /** Flush beside the batch. A batch that needs the room before waits for it, in `moveToDisk`. */
  private def flushBehind(): Unit = if (isFlushing.compareAndSet(false, true)) {
    val generation = status.generation
    Seams.start(s"flush ${store.context.label}", () => flushIfServed(generation))(pool.execute(_))
  }

  private def flushIfServed(generation: Int): Unit =
    try store.diskLock.during(if (status.serves(generation)) snapshots.flush())
    catch {
      // the rows stay in memory; whoever needs their room flushes again, and fails for all to see
      case NonFatal(e) => logWarning(
          s"store ${store.context.label}: a flush in the background failed: ${e.getMessage}")
    } finally {
      isFlushing.set(false)
      store.context.events.publish()
    }

  /** What of its share the store may fill with rows: what helps reads of the disk tier has a
    * part. */
  private def ofRows(share: Long): Long = math.max(share / 4, share - store.tier.lookupBytes)

  /** What the store holds of the budget. Callers hold the monitor. */
  private def heldBytes: Long = families.usedBytes + store.tier.lookupBytes

  /** Whether the rows that are read back from storage have no room. A store without a disk tier
    * takes them all, and refuses when it begins a batch. Callers hold the monitor. */
  def isFull: Boolean = !store.isHeap && budget.isExceeded &&
    families.usedBytes > store.share.bytes(heldBytes)

  /** Whether a row that was read from the disk tier may be kept. Callers hold the monitor. */
  def admits(): Boolean = !budget.isExceeded || {
    val share = ofRows(store.share.bytes(heldBytes))
    if (families.liveBytes > share) evict(share)
    families.liveBytes <= share
  }

  /** After a write of a running batch. Callers hold no lock. */
  def afterWrite(): Unit = relieve(ends = false)

  /** Whether a batch may leave less than it may have while it runs. */
  def isCrowded: Boolean = budget.isCrowded && !store.isHeap

  /** Before the commit of a running batch, if `isCrowded`. Callers hold neither `diskLock` nor the
    * monitor. */
  def beforeCommit(): Unit = relieve(ends = true)

  private def relieve(ends: Boolean): Unit = if (store.synchronized(mustSpill(ends)))
    try moveToDisk(ends)
    finally store.context.events.publish()

  private def moveToDisk(ends: Boolean): Unit =
    store.diskLock.during {
      // afterwards committed rows can be evicted, and a spill comes after them in the disk tier
      snapshots.flush()
      if (store.synchronized(isFlushed && mustSpill(ends))) {
        snapshots.keepForLater()
        store.synchronized(if (isFlushed && mustSpill(ends)) spill())
      }
    }

  /** Whether the disk tier has all that is committed. The task of this thread may have ended since
    * the flush began, and others may have committed: whoever writes for them flushes again. */
  private def isFlushed: Boolean = store.committed.flushed.version == store.committed.version

  /** Other stores may have given back enough since the caller looked, or waited. */
  private def mustSpill(ends: Boolean): Boolean = {
    val held = heldBytes
    val most = ofRows(store.share.ofBatch(held))
    val share = if (ends) ofRows(store.share.afterBatch(held)) else most
    def over: Boolean = batch.isWriting && budget.isExceeded &&
      (families.liveBytes > share || families.usedBytes > 2 * most)
    over && {
      if (store.isHeap) {
        refuse()
        false // no disk tier has what it would drop
      } else { evict(share); over }
    }
  }

  /** Refuses to go on: this store may drop nothing. */
  def refuse(): Unit = if (budget.isExceeded)
    throw MillpondError.of(
      "MEMORY_EXHAUSTED",
      s"store ${store.context.label} keeps its state in memory alone (backend=heap), and that " +
        s"exceeds memory.budget, ${budget.limitBytes} bytes for all stores of this executor.",
      hint = "Raise the option memory.budget, or set backend to rocksdb: the state stays as it is."
    )

  private def isScanned: Boolean = families.all.exists(_.table.isScanned)

  private def evict(share: Long): Unit = if (!nothingToEvict || (sparedByScan && !isScanned)) {
    check()
    val wanted = families.liveBytes - (share - share / Headroom)
    if (wanted > 0) {
      warmUp.end()
      val flushed = store.committed.flushed.version.toInt
      var left = wanted
      families.values.forEach(f => if (left > 0) left -= f.table.evict(left, flushed))
      // the rest is dirty, or belongs to the running batch: evict again only after the next flush.
      // Or an iterator is open: no call before its end should go round the tables once more
      nothingToEvict = left > 0
      sparedByScan = isScanned
      if (left < wanted) store.metrics.evictedBytes += wanted - left
    }
  }

  /** Rebuild the tables. Dirty rows stay, and about `keepBytes` of rows that were used lately. A
    * store without a disk tier keeps all rows. */
  private def rebuild(keepBytes: Long): Unit = {
    check()
    warmUp.end()
    val (start, before) = (System.nanoTime, families.usedBytes)
    val flushed = store.committed.flushed.version.toInt
    var room = keepBytes
    families.values.forEach { f =>
      val table = f.table
      f.table = table.rebuild(
        { record =>
          val dirty = table.stamp(record) > flushed
          val keep =
            dirty || store.isHeap || (table.wasUsed(record) && table.isPresent(record) && room > 0)
          if (keep) room -= table.keyLength(record) + math.max(0, table.valueLength(record)) + 64
          keep
        },
        (address, _) => f.prefixLength(null, address)
      )
    }
    nothingToEvict = false
    store.metrics.shrinks += 1
    store.context.events.note("memory_shrunk", "version" -> store.committed.version,
      "duration_ms" -> (System.nanoTime - start) / 1000000L,
      "bytes" -> math.max(0L, before - families.usedBytes))
  }

  /** Move the writes of the running batch to the disk tier. Afterwards only a commit or a reload
    * can end the batch. Callers hold `diskLock` too. */
  private def spill(): Unit = store.shown.background.during("spill") {
    check()
    warmUp.end()
    val dir = store.context.generationDir(status.generation)
    val next = store.committed.version + 1
    val (start, before) = (System.nanoTime, families.liveBytes)
    val segments = batchLog.segments(dir, next, batch.id)
    spilled = next
    var done = false
    try { store.tier.flush().run(segments); batchLog.writeAll(); done = true }
    finally {
      batchLog.delete(segments)
      // the disk tier may hold a part of the batch, which cannot go on
      if (!done) status.unloaded()
    }
    families.giveUpRows()
    nothingToEvict = false
    store.metrics.spills += 1
    store.context.events.note("spilled", "version" -> next,
      "duration_ms" -> (System.nanoTime - start) / 1000000L, "bytes" -> before)
  }

  private def check(): Unit = assert(Thread.holdsLock(store), "without the store's monitor")
}

private object Pressure {
  // an eviction frees a sixteenth of the share, so that not every write must evict
  private val Headroom = 16

  private lazy val pool = Daemons.one("millpond-flush")
}
