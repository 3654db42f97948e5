package org.apache.spark.sql.millpond

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.internal.SQLConf

/** The session extension (`spark.sql.extensions`): looks at every plan of a streaming query on the driver, before its first task. */
class MillpondExtension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar(_ => new ColumnarRule {
      override def preColumnarTransitions: Rule[SparkPlan] = StatefulPlanRule
    })
}

private object StatefulPlanRule extends Rule[SparkPlan] {
  private val Key = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val Ours = classOf[MillpondStateStoreProvider].getName

  override def apply(plan: SparkPlan): SparkPlan = {
    if (plan.exists(_.isInstanceOf[StateStoreWriter])) {
      check()
      if (SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) == Ours) plan.transformUp(TransformWithStateNodes.admit) else plan
    } else plan
  }

  private def check(): Unit = {
    val conf = SQLConf.get
    val effective = conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)
    if (effective == Ours) { Options.resolve(conf.getAllConfs); () }
    else {
      // the offset log pins the provider with which a query began: in the query's own session it replaces what the user's session asks for,
      // and Spark goes on with that one and does not say so
      val asked = SparkSession.getDefaultSession.flatMap(_.conf.getOption(Key))
      if (asked.contains(Ours))
        throw MillpondError.of("FOREIGN_CHECKPOINT", s"this query's checkpoint was written with $effective, which its offset log pins: Millpond cannot continue it.")
    }
  }
}
