package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Clock, Daemons}
import org.apache.spark.sql.millpond.observe.DriverReports
import org.apache.spark.util.ShutdownHookManager

/** Forgets a run of a query. Whoever hears of its end tells it: a listener, or the heartbeat that
  * finds the query gone. A second call does no harm.
  *
  * What is left to do on storage is done on a thread of the run's own: Spark's listeners share one,
  * and would all wait where the storage of one query is slow. A driver that exits waits for these
  * threads, but not for long. */
private object EndedRuns extends Logging {
  // Commands take a heartbeat for that of a running query three times as long.
  private val MostWaitMs = 5000L
  private val ending = new ConcurrentHashMap[UUID, Thread]

  /** Said by each run that begins: while the JVM ends, Spark takes no hook. Spark's context comes
    * before this one, and tells its listeners what they have not heard yet. */
  lazy val awaitedAtExit: Unit =
    ShutdownHookManager.addShutdownHook(ShutdownHookManager.SPARK_CONTEXT_SHUTDOWN_PRIORITY - 1)(
      () => await()): Unit

  def ended(run: UUID): Unit = {
    AskedProviders.ended(run)
    StartCheck.ended(run)
    SparksSettings.ended(run)
    Ttls.ended(run)
    Sinks.ended(run)
    Balance.ended(run)
    WithoutExtension.ended(run)
    DriverReports.queryEnded()
    ending.computeIfAbsent(run, endOnStorage(_)): Unit
  }

  private def endOnStorage(run: UUID): Thread = {
    val thread = Daemons.named(s"millpond-end-$run").newThread(() =>
      try {
        // before the heartbeat ends: then the Spark checkpoint may be changed, or deleted
        History.ended(run)
        Heartbeats.ended(run)
      } finally ending.remove(run): Unit)
    thread.start()
    thread
  }

  private def await(): Unit = {
    val untilMs = Clock.passedMs + MostWaitMs
    // 0 would wait for ever
    ending.values.forEach(thread => thread.join(math.max(1L, untilMs - Clock.passedMs)))
    ending.keySet.forEach(run =>
      logWarning(s"the storage did not answer within $MostWaitMs ms at the end of the run $run: " +
        "the last batches may be missing in its history, and commands see its heartbeat for some " +
        "seconds more"))
  }
}
