package org.apache.spark.sql.millpond.base

import java.util.concurrent.{Executors, ScheduledExecutorService, TimeUnit}

object Clock {

  /** Run `work` again and again on a daemon thread of its own. `work` must not throw: then it would
    * not run again.
    * @param name the thread's name
    */
  def every(intervalMs: Long, name: String, delayMs: Long = 0L)(
      work: => Unit): ScheduledExecutorService = {
    val pool = Executors.newSingleThreadScheduledExecutor(Daemons.named(name))
    pool.scheduleWithFixedDelay(() => work, delayMs, intervalMs, TimeUnit.MILLISECONDS): Unit
    pool
  }
}
