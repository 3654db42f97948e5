package org.apache.spark.sql.millpond

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.StreamingQueryListener

/** The session extension (`spark.sql.extensions`): looks at every plan of a streaming query on the driver, before its first task. */
class MillpondExtension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectCheckRule(session => new WatchStarts(session))
    extensions.injectColumnar(_ => MillpondExtension.Planning)
  }
}

private[millpond] object MillpondExtension {
  private object Planning extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = StatefulPlanRule
  }

  private def isIn(session: SparkSession): Boolean =
    session.extensions.buildColumnarRules(session).contains(Planning)

  private def plansTransformWithState: Boolean =
    StackWalker.getInstance.walk[Boolean](
      _.anyMatch(_.getClassName.contains(".TransformWithState")))

  /** Without the extension Spark refuses `transformWithState` on this provider, and does not say what to do about it. Before it does, it asks
    * the provider for its metrics: from there, on the driver, this is called, and is first with an error that helps. A batch query may use the
    * operator on any provider. */
  def demand(): Unit = if (TaskContext.get() == null)
    SparkSession.getActiveSession.foreach { session =>
      val streaming = session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null
      if (streaming && !isIn(session) && plansTransformWithState) {
        val line = s"spark.sql.extensions=${classOf[MillpondExtension].getName}"
        throw MillpondError.of(
          "EXTENSION_MISSING",
          s"transformWithState runs on Millpond only in a session that was started with $line; this one was not.",
          s"stop the session and start it with this line in spark-defaults.conf, with `--conf $line`, or by millpond.configure(SparkSession.builder)."
        )
      }
    }
}

/** Which provider the user's session named when a query was started. Later is too late: by the first plan the offset log of the checkpoint
  * may have replaced the setting in the query's own session, and the user may have changed the one of theirs for another query. */
private object AskedProviders {
  private val byRun = new ConcurrentHashMap[UUID, String]
  def of(run: UUID): Option[String] = Option(byRun.get(run))
  def started(run: UUID, provider: String): Unit = { byRun.put(run, provider); () }
  def ended(run: UUID): Unit = { byRun.remove(run); () }
}

/** Listens to the queries of a session from its first analysed plan on, which comes before its first query. No other hook of an extension
  * knows the session when it is complete. */
private final class WatchStarts(session: org.apache.spark.sql.SparkSession) extends (
        LogicalPlan => Unit) {
  private lazy val listening: Unit = session.streams.addListener(new StreamingQueryListener {
    // called while the user's thread waits in start(), before the query reads its logs
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit = {
      AskedProviders.started(event.runId, session.conf.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key))
      val query = session.streams.get(event.id) match {
        case wrapper: StreamingQueryWrapper => Some(wrapper.streamingQuery)
        case stream: StreamExecution => Some(stream)
        case _ => None
      }
      query.foreach(Sinks.started(_, event.runId))
      query.foreach(AskedPartitions.started(_,
          event.runId)) // first: a query that has a heartbeat is not rescaled
      query.foreach(Heartbeats.started(_, event.runId))
    }
    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()
    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = {
      AskedProviders.ended(event.runId)
      StartCheck.ended(event.runId)
      Sinks.ended(event.runId)
      Heartbeats.ended(event.runId)
    }
  })

  override def apply(plan: LogicalPlan): Unit = if (plan.isStreaming) listening
}

private object StatefulPlanRule extends Rule[SparkPlan] {
  private val Ours = classOf[MillpondStateStoreProvider].getName

  override def apply(plan: SparkPlan): SparkPlan = {
    val infos = plan.collect {
      case writer: StateStoreWriter if writer.stateInfo.isDefined => writer.getStateInfo
    }
    if (infos.isEmpty) plan
    else {
      val effective = SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)
      if (effective == Ours) {
        val options = Options.resolve(SQLConf.get.getAllConfs)
        // the operator in a batch query has no run that was started
        if (AskedProviders.of(infos.head.queryRunId).isDefined)
          SparkSession.getActiveSession.foreach { session =>
            StartCheck.once(session, infos.head, options)
            Sinks.note(session, infos.head)
          }
        plan.transformUp(TransformWithStateNodes.admit)
      } else {
        // the offset log pins the provider with which a query began; Spark goes on with that one and does not say so
        if (AskedProviders.of(infos.head.queryRunId).contains(Ours))
          throw MillpondError.of("FOREIGN_CHECKPOINT",
            s"this query's checkpoint was written with $effective, which its offset log pins: Millpond cannot continue it.")
        plan
      }
    }
  }
}
