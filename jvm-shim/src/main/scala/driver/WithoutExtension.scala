package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerEvent}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{Names, Options}
import org.apache.spark.sql.millpond.observe.DriverReports
import org.apache.spark.sql.streaming.StreamingQueryListener.{
  QueryProgressEvent, QueryTerminatedEvent
}

/** Watches the queries of a session that has no extension. Nothing tells Millpond when such a query
  * starts: the first that it hears is the plan of the first batch. So this warns, lets the query's
  * heart beat from there on, and writes down that the run has no extension. Runs on the driver. */
private object WithoutExtension extends Logging {
  private val watched = ConcurrentHashMap.newKeySet[UUID]

  /** Called for every stateful operator of every plan. */
  def planned(session: SparkSession, id: UUID): Unit =
    Option(session.sharedState.activeStreamingQueries.get(id)).foreach { query =>
      val run = query.runId
      if (watched.add(run)) {
        val context = session.sparkContext
        Options.refuseNear(session.sessionState.conf.getAllConfs)
        context.addSparkListener(new SparkListener {
          override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
            case news: QueryProgressEvent if news.progress.runId == run =>
              History.progress(news.progress)
            case ended: QueryTerminatedEvent if ended.runId == run =>
              History.ended(run)
              Heartbeats.ended(run)
              DriverReports.queryEnded()
              watched.remove(run)
              context.removeSparkListener(this)
            case _ =>
          }
        })
        logWarning(
          s"The streaming query ${Option(query.name).getOrElse(id)} keeps its state in Millpond, " +
            "but spark.sql.extensions does not name Millpond's extension. " +
            s"Commands such as `millpond rescale` see that the query runs only after its first " +
            s"batch, and ${SQLConf.SHUFFLE_PARTITIONS.key} and Spark checkpoints of other stores " +
            s"are not checked. ${Names.Provider}: ${Extension.Mend}")
        DriverReports.start(context)
        Sinks.withoutExtension(query)
        Heartbeats.started(query, run, late = true)
        History.started(query, run)
      }
    }
}
