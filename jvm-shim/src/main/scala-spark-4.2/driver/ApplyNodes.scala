package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec

/** Spark 4.2 has other conversions of pandas, so its own node of `applyInPandasWithState` stays.
  * This says why. */
private[driver] object ApplyNodes {
  val admit: PartialFunction[SparkPlan, SparkPlan] = Function.unlift {
    case node: FlatMapGroupsInPandasWithStateExec =>
      BulkTransport.ofApply(node): Unit
      None
    case _ => None
  }
}
