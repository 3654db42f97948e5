package org.apache.spark.sql.millpond.engine

import java.util.concurrent.locks.LockSupport

/** Throttles one background thread: parks it while others need its resources, for half its time at
  * most. Idle time counts.
  *
  * @param mostNs the longest single park, and how long it may park before it has worked */
private[engine] final class Throttle(mostNs: Long) {
  private var creditNs = mostNs
  private var resumed = System.nanoTime

  def giveWay(needed: => Boolean): Unit = if (needed) {
    val now = System.nanoTime
    creditNs = math.min(mostNs, creditNs + now - resumed)
    while (creditNs > 0 && needed) {
      val asleep = System.nanoTime
      LockSupport.parkNanos(Throttle.LookNs)
      creditNs -= System.nanoTime - asleep
    }
    resumed = System.nanoTime
  }
}

private object Throttle {
  private val LookNs = 300000L
}
