package org.apache.spark.sql.millpond

import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.LockSupport

/** The commits that run in this JVM now. A commit keeps two cores busy, its own and a helper's. */
private[millpond] object Commits {
  private val running = new AtomicInteger
  private val cores = Runtime.getRuntime.availableProcessors

  def during[T](commit: => T): T = {
    running.incrementAndGet(): Unit
    try commit finally running.decrementAndGet(): Unit
  }

  def needAllCores: Boolean = { val n = running.get; n > 0 && 2 * n >= cores }
}

/** Work in the background that stands aside while commits need all cores, for half of its time at most. For one thread. */
private[millpond] final class Courtesy {
  private var resumed = System.nanoTime
  private var creditNs = 0L

  def giveWay(): Unit = if (Commits.needAllCores) {
    val now = System.nanoTime
    creditNs = math.min(Courtesy.MostNs, creditNs + now - resumed)
    while (creditNs > 0 && Commits.needAllCores) {
      val asleep = System.nanoTime
      LockSupport.parkNanos(Courtesy.LookNs)
      creditNs -= System.nanoTime - asleep
    }
    resumed = System.nanoTime
  }
}

private[millpond] object Courtesy {
  private val LookNs = 300000L
  private val MostNs = 50000000L
}
