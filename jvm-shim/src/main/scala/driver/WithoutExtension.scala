package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerEvent}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{MillpondError, Names, Options}
import org.apache.spark.sql.millpond.observe.DriverReports
import org.apache.spark.sql.streaming.StreamingQueryListener.{
  QueryProgressEvent, QueryTerminatedEvent
}

/** Watches the queries of a session that has no extension. Nothing tells Millpond when such a query
  * starts: the first that it hears is the plan of the first batch. So this warns, lets the query's
  * heart beat from there on, and writes down that the run has no extension. Runs on the driver. */
private object WithoutExtension extends Logging {
  private val watched = new ConcurrentHashMap[UUID, () => Unit] // stops to listen

  /** Called for every stateful operator of every plan. */
  def planned(query: StreamExecution): Unit = {
    val run = query.runId
    if (!watched.containsKey(run)) {
      val session = query.sparkSessionForStream
      refuse(session.sessionState.conf.getAllConfs)
      StartCheck.refuseUnfinished(new Path(query.resolvedCheckpointRoot),
        session.sessionState.newHadoopConf())
      val context = session.sparkContext
      val listener = new SparkListener {
        override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
          case news: QueryProgressEvent if news.progress.runId == run =>
            History.progress(news.progress)
          case ended: QueryTerminatedEvent if ended.runId == run => EndedRuns.ended(run)
          case _ =>
        }
      }
      watched.put(run, () => context.removeSparkListener(listener))
      context.addSparkListener(listener)
      logWarning(
        s"The streaming query ${Option(query.name).getOrElse(query.id)} keeps its state in " +
          "Millpond, but spark.sql.extensions does not name Millpond's extension. " +
          s"Commands such as `millpond rescale` see that the query runs only after its first " +
          s"batch, and ${SQLConf.SHUFFLE_PARTITIONS.key} and Spark checkpoints of other stores " +
          s"are not checked. ${Names.Provider}: ${Extension.Mend}")
      DriverReports.start(context)
      Sinks.withoutExtension(query)
      Heartbeats.started(query, run, late = true)
      History.started(query, run)
    }
  }

  def ended(run: UUID): Unit = {
    val stop = watched.remove(run)
    if (stop != null) stop()
  }

  /** Options that would be ignored. The run is not watched before they are none: Spark first
    * describes the plan, and swallows what that throws; it asks again when it runs the plan. */
  private def refuse(settings: Map[String, String]): Unit = {
    Options.refuseNear(settings)
    val options = Options.resolve(settings)
    if (Seq("ttl", "ttl.operators").exists(options.string(_).isDefined))
      throw MillpondError.of(
        "EXTENSION_MISSING",
        s"${Options.prefix}ttl and ttl.operators need Millpond's extension, which this " +
          "session does not have: nothing would end.",
        Extension.Mend
      )
  }
}
