package org.apache.spark.sql.millpond.engine

/** Whether a store can be used, and which of its loads it serves. Any thread may ask. Callers that
  * change it hold `monitor`, the store's own, or the call takes it. */
private[millpond] final class StoreStatus(monitor: AnyRef) {
  @volatile private var number = 0
  @volatile private var loaded = false
  @volatile private var closed = false
  @volatile private var stale = false

  /** Counts the loads. Each has a folder of its own, so what an older one left harms nobody. */
  def generation: Int = number
  def isLoaded: Boolean = loaded
  def isClosed: Boolean = closed
  /** Whether files of the store are gone or replaced. The next opening loads from storage. */
  def isStale: Boolean = stale
  /** Whether the store is loaded, open, and still in this generation. */
  def serves(generation: Int): Boolean = number == generation && loaded && !closed

  /** Begin a load. Returns its generation. */
  private[engine] def beginLoad(): Int = {
    check()
    number += 1
    number
  }
  private[engine] def loadDone(): Unit = {
    check()
    loaded = true
    stale = false
  }
  /** Memory holds no version: the next opening loads one. */
  private[engine] def unloaded(): Unit = {
    check()
    loaded = false
  }
  /** Do work that leads memory to another version. If it fails, memory holds none. */
  private[engine] def changing(work: => Unit): Unit = {
    unloaded()
    work
    loaded = true
  }
  private[engine] def outdated(): Unit = monitor.synchronized { stale = true }
  private[engine] def close(): Unit = {
    check()
    closed = true
  }

  private def check(): Unit = assert(Thread.holdsLock(monitor), "without the store's monitor")
}
