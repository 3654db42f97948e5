package org.apache.spark.sql.millpond.base

import java.util.concurrent.{Executors, ScheduledExecutorService, ThreadFactory, TimeUnit}

object Clock {

  /** Run `work` again and again on a daemon thread of its own. `work` must not throw: then it would
    * not run again.
    * @param name the thread's name
    */
  def every(intervalMs: Long, name: String, delayMs: Long = 0L)(
      work: => Unit): ScheduledExecutorService = {
    val pool = Executors.newSingleThreadScheduledExecutor(new ThreadFactory {
      def newThread(run: Runnable): Thread = {
        val t = new Thread(run, name)
        t.setDaemon(true)
        t
      }
    })
    pool.scheduleWithFixedDelay(() => work, delayMs, intervalMs, TimeUnit.MILLISECONDS): Unit
    pool
  }
}
