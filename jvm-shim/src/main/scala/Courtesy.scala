package org.apache.spark.sql.millpond

import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.LockSupport

/** What this JVM is busy with now. */
private[millpond] object Busy {
  private val commits = new AtomicInteger
  private val batches = new AtomicInteger
  private val cores = Runtime.getRuntime.availableProcessors

  def committing[T](commit: => T): T = {
    commits.incrementAndGet(): Unit
    try commit
    finally commits.decrementAndGet(): Unit
  }

  /** A commit keeps two cores busy, its own and a helper's. */
  def commitsNeedAllCores: Boolean = { val n = commits.get; n > 0 && 2 * n >= cores }

  def batchBegins(): Unit = batches.incrementAndGet(): Unit
  def batchEnds(): Unit = batches.decrementAndGet(): Unit
  def batchesNeedAllCores: Boolean = batches.get >= cores
}

/** Work in the background that stands aside while others need what it uses, for half of its time at most, idle time counted. For one thread.
  *
  * @param mostNs the longest that it ever stands aside at once
  * @param creditNs how much of that it may do at once, before it has worked */
private[millpond] final class Courtesy(mostNs: Long, private var creditNs: Long) {
  private var resumed = System.nanoTime

  def giveWay(needed: => Boolean): Unit = if (needed) {
    val now = System.nanoTime
    creditNs = math.min(mostNs, creditNs + now - resumed)
    while (creditNs > 0 && needed) {
      val asleep = System.nanoTime
      LockSupport.parkNanos(Courtesy.LookNs)
      creditNs -= System.nanoTime - asleep
    }
    resumed = System.nanoTime
  }
}

private[millpond] object Courtesy {
  private val LookNs = 300000L
  private val FlushNs = 50000000L
  private val WarmUpNs = 5000000000L

  /** For a flush: it must go on in a job that always commits. */
  def ofFlush(): Courtesy = new Courtesy(FlushNs, 0L)
  /** For the warm-up: after the start of an executor the first batches are what everybody waits for. */
  def ofWarmUp(): Courtesy = new Courtesy(WarmUpNs, WarmUpNs)
}
