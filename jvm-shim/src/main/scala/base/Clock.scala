package org.apache.spark.sql.millpond.base

import java.util.concurrent.{Executors, ScheduledExecutorService, TimeUnit}

import org.apache.spark.internal.Logging

object Clock extends Logging {
  private val beganNanos = System.nanoTime

  /** Milliseconds that have passed in this JVM, for pauses. Nobody sets this clock, other than the
    * machine's. */
  def passedMs: Long = (System.nanoTime - beganNanos) / 1000000L

  /** Run `work` again and again on a daemon thread of its own, whatever it throws. The log tells of
    * the first failure in a row.
    * @param name the thread's name
    */
  def every(intervalMs: Long, name: String, delayMs: Long = 0L)(
      work: => Unit): ScheduledExecutorService = {
    val pool = Executors.newSingleThreadScheduledExecutor(Daemons.named(name))
    var isFailing = false // the thread's own
    pool.scheduleWithFixedDelay(
      () =>
        try { work; isFailing = false }
        catch {
          // the pool runs nothing again that threw, be it an error, and tells nobody
          case e: Throwable =>
            if (!isFailing) logWarning(s"$name fails, and tries again every $intervalMs ms: $e", e)
            isFailing = true
        },
      delayMs,
      intervalMs,
      TimeUnit.MILLISECONDS
    ): Unit
    pool
  }
}
