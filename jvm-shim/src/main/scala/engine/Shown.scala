package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.observe.{Background, Observed, ObservedStore}

/** What a store shows of itself. Other threads read it at any moment and take no lock: what is
  * committed is one value, and each other field is assigned by one caller at a time. */
private[millpond] final class Shown(context: StoreContext, metrics: StoreMetrics,
    committed: () => Committed) extends ObservedStore {
  @volatile private var newestSnapshotMs = 0L
  @volatile private var waitingSinceMs = 0L
  @volatile private var meanBatchMs = 0L
  @volatile private var lastRestoreMs = 0L
  // of the task that has the store; its thread assigns them
  private var attempt = -1L
  private var sinceNs = 0L
  private var isFresh = true

  override val background = new Background
  override def runId: String = context.runId
  override def operator: Long = context.storeId.operatorId
  override def partition: Int = context.storeId.partitionId
  override def name: String = context.storeId.storeName
  override def version: Long = committed().version
  override def memoryBytes: Long = metrics.memoryBytes
  override def diskBytes: Long = metrics.diskBytes
  override def lookups: Long = metrics.allLookups
  override def diskReads: Long = metrics.allDiskReads

  override def unflushed: Int = proven(committed()).size
  override def unflushedSinceMs: Long = proven(committed()).headOption.fold(0L)(_.sinceMs)
  private def proven(now: Committed) = now.pending.filter(_.version <= now.anchor.version)

  override def snapshotVersion: Long = committed().snapshotVersion
  override def snapshotMs: Long = newestSnapshotMs
  override def behind: Long = {
    val now = committed()
    math.max(0L, now.anchor.version - now.snapshotVersion)
  }
  override def behindSinceMs: Long = if (behind == 0) 0L else waitingSinceMs

  override def batchMs: Long = meanBatchMs
  override def restoreMs: Long = lastRestoreMs

  /** A task has the store; it may ask for it again. */
  def entered(by: Session): Unit = if (by.attempt != attempt || attempt < 0) {
    attempt = by.attempt
    sinceNs = System.nanoTime
  }

  /** The task's batch is durable. The first after a load tells more of the executor, which may
    * have started a Python worker, than of the store. */
  def batchDone(): Unit =
    if (isFresh) isFresh = false
    else {
      val ms = math.max(1L, (System.nanoTime - sinceNs) / 1000000L)
      meanBatchMs = if (meanBatchMs == 0L) ms else math.max(1L, (3 * meanBatchMs + ms) / 4)
    }

  /** A load has ended.
    * @param madeMs when its snapshot was made, 0 without one
    * @param tookNs how long it took */
  def loaded(madeMs: Long, tookNs: Long): Unit = {
    sinceNs += tookNs
    isFresh = true
    lastRestoreMs = tookNs / 1000000L
    newestSnapshotMs = madeMs
    waitingSinceMs = System.currentTimeMillis
  }

  /** A snapshot is in storage; it has all that was proven committed at `takenMs`. */
  def snapshotMade(takenMs: Long): Unit = {
    newestSnapshotMs = System.currentTimeMillis
    waitingSinceMs = takenMs
  }

  /** Another executor made a snapshot, which a changelog names: nothing says when. */
  def snapshotSeen(): Unit = snapshotMade(System.currentTimeMillis)

  /** The store gave up all that it has, until a load. */
  def emptied(): Unit = newestSnapshotMs = 0L

  def opened(): Unit = Observed.opened(this)
  def closed(): Unit = Observed.closed(this)
}
