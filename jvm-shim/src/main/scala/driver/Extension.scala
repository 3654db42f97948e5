package org.apache.spark.sql.millpond.driver

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

  /** Without the extension Spark refuses `transformWithState` on this provider, with an error that
    * does not help. Before it refuses, it asks the provider for its metrics, on the driver. The
    * provider then calls this, which fails first, with an error that helps. A batch query may use
    * the operator on any provider. */
  def demand(): Unit = if (TaskContext.get() == null)
    SparkSession.getActiveSession.foreach { session =>
      val streaming = session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null
      if (streaming && !isIn(session) && plansTransformWithState) {
        val line = s"spark.sql.extensions=${Names.ExtensionClass}"
        throw MillpondError.of(
          "EXTENSION_MISSING",
          s"transformWithState runs on Millpond only in a session that was started with $line; " +
            "this one was not.",
          "stop the session and start it with this line in spark-defaults.conf, with " +
            s"`--conf $line`, or by millpond.configure(SparkSession.builder)."
        )
      }
    }
}
