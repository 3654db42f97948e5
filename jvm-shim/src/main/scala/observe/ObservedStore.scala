package org.apache.spark.sql.millpond.observe

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

/** What a store shows while it is open. Whoever asks holds no lock of the store and waits for
  * none, so two numbers may belong to different moments. */
trait ObservedStore {
  def runId: String
  def operator: Long
  def partition: Int
  def name: String
  /** What is committed and in memory; -1 while nothing is loaded. */
  def version: Long
  /** As the last batch left them. */
  def memoryBytes: Long
  def diskBytes: Long
  /** Point reads since the store was opened, and those that went to the disk tier. */
  def lookups: Long
  def diskReads: Long
  /** Changelogs that the disk tier lacks, and when the oldest of them was written or read; 0: none.
    * Versions count from the newest that is proven committed. */
  def unflushed: Int
  def unflushedSinceMs: Long
  /** Of the newest snapshot: its version, and when it was made; 0: there is none. */
  def snapshotVersion: Long
  def snapshotMs: Long
  /** Versions that no snapshot has, and since when the first of them waits; 0: none. */
  def behind: Long
  def behindSinceMs: Long
  /** How long the tasks of the last batches had the store, restores left out, as a mean in which
    * the newest counts most; 0: none has committed here. And the time of the last restore. */
  def batchMs: Long
  def restoreMs: Long
  def background: Background
}

/** What a store does in the background now, and since when. */
final class Background {
  private val running = new ConcurrentHashMap[String, java.lang.Long]

  def during[T](what: String)(work: => T): T = {
    running.put(what, System.currentTimeMillis): Unit
    try work
    finally running.remove(what): Unit
  }

  /** By name, the time of its begin in ms since the epoch. */
  def now: Seq[(String, Long)] =
    running.asScala.iterator.map { case (what, since) => what -> since.longValue }.toSeq.sorted
}

/** The open stores of this JVM, and the memory that they share. */
object Observed {
  private val open = ConcurrentHashMap.newKeySet[ObservedStore]
  @volatile private var budget: () => (Long, Long) = () => (0L, 0L)
  @volatile private var followed: () => Int = () => 0

  def stores: Iterator[ObservedStore] = open.iterator.asScala

  def opened(store: ObservedStore): Unit = {
    open.add(store): Unit
    Reports.start()
  }
  def closed(store: ObservedStore): Unit = open.remove(store): Unit

  /** Whoever owns the budget says what is used, and the limit. */
  def memory(usedAndLimit: () => (Long, Long)): Unit = budget = usedAndLimit
  private[observe] def memory: (Long, Long) = budget()

  /** Whoever follows stores of other executors says how many. */
  def standby(count: () => Int): Unit = followed = count
  private[observe] def standbyStores: Int = followed()
}
