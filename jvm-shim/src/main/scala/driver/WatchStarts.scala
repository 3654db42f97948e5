package org.apache.spark.sql.millpond.driver

import java.lang.ref.WeakReference
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.millpond.base.BuildInfo
import org.apache.spark.sql.streaming.StreamingQueryListener

/** The provider that the user's session named when a query started. It must be read then: by the
  * first plan the offset log may have replaced the setting in the query's own session, and the user
  * may have changed it in theirs. */
private object AskedProviders {
  private val byRun = new ConcurrentHashMap[UUID, String]
  def of(run: UUID): Option[String] = Option(byRun.get(run))
  def started(run: UUID, provider: String): Unit = { byRun.put(run, provider); () }
  def ended(run: UUID): Unit = { byRun.remove(run); () }
}

/** Hears of the queries that start in a session. Spark keeps a listener as long as its context.
  * Each query runs its batches in a copy of the session, and a batch may start a query there: so
  * every copy has a listener, which must not keep it. While a query of the session runs, Spark
  * keeps it. */
private final class Started(of: SparkSession) extends StreamingQueryListener {
  private val known = new WeakReference(of)

  // called while the user's thread waits in start(), before the query reads its logs
  override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
    Option(known.get).foreach { session =>
      AskedProviders.started(event.runId, RealTime.asked(session))
      val query = session.streams.get(event.id) match {
        case wrapper: StreamingQueryWrapper => Some(wrapper.streamingQuery)
        case stream: StreamExecution => Some(stream)
        case _ => None
      }
      query.foreach(SparksSettings.started(_, event.runId))
      query.foreach(RealTimeNodes.clear)
      query.foreach(RealTime.started)
      query.foreach(Ttls.started(_, event.runId))
      query.foreach(Sinks.started(_, event.runId))
      // first: a query that has a heartbeat is not rescaled
      query.foreach(AskedPartitions.started(_, event.runId))
      query.foreach(Heartbeats.started(_, event.runId))
      query.foreach(History.started(_, event.runId))
    }
  override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit =
    History.progress(event.progress)
  override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit =
    EndedRuns.ended(event.runId)
}

/** Listens to the queries of a session from its first analysed plan on, which comes before its
  * first query. No other hook of an extension knows the session when it is complete. */
private final class WatchStarts(session: SparkSession) extends (LogicalPlan => Unit) {
  private val listener = new Started(session)

  /** Called before each query: the job may have removed all listeners of its session since the last
    * one. */
  private def listen(): Unit = synchronized {
    if (!session.streams.listListeners().contains(listener)) session.streams.addListener(listener)
  }

  override def apply(plan: LogicalPlan): Unit = if (plan.isStreaming) {
    BuildInfo.check() // here, and not when the session starts: Spark swallows errors there
    listen()
    RealTime.prepare(session)
    LogFiles.prepare(session)
  }
}
