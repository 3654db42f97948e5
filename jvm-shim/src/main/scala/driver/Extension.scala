package org.apache.spark.sql.millpond.driver

import java.util.UUID

import org.apache.spark.TaskContext
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.millpond.base.{MillpondError, Names}

/** The implementation of `MillpondExtension`: looks at every plan of a streaming query on the
  * driver, before its first task. */
abstract class Extension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectCheckRule(session => new WatchStarts(session))
    extensions.injectColumnar(_ => Extension.Planning)
  }
}

private[millpond] object Extension {
  private object Planning extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = StatefulPlanRule
  }

  private def isIn(session: SparkSession): Boolean =
    session.extensions.buildColumnarRules(session).contains(Planning)

  private def plansTransformWithState: Boolean =
    StackWalker.getInstance.walk[Boolean](
      _.anyMatch(_.getClassName.contains(".TransformWithState")))

  /** What a session without the extension needs. Spark asks the provider for its metrics on the
    * driver, when it plans a batch; the provider then calls this. Spark would refuse
    * `transformWithState` on this provider, with an error that does not help: this fails first,
    * with an error that helps. Any other query is watched from here on. A batch query may use the
    * operators on any provider. */
  def demand(): Unit = if (TaskContext.get() == null)
    for {
      active <- SparkSession.getActiveSession
      id <- Option(active.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    } {
      val query = Option(active.sharedState.activeStreamingQueries.get(UUID.fromString(id)))
      // The active session is that of the thread which started the query: it may be another one.
      val session = query.fold(active)(_.sparkSessionForStream)
      if (isIn(session)) query.foreach(RealTimeNodes.described)
      else {
        if (plansTransformWithState)
          throw MillpondError.of(
            "EXTENSION_MISSING",
            s"transformWithState runs on Millpond only in a session that was started with $Line; " +
              "this one was not.",
            Mend
          )
        query.foreach(WithoutExtension.planned)
      }
    }

  private val Line = s"spark.sql.extensions=${Names.ExtensionClass}"

  /** What to do about a session that has no extension. */
  val Mend: String = "stop the session and start it with this line in spark-defaults.conf, with " +
    s"`--conf $Line`, or by millpond.configure(SparkSession.builder)."
}
