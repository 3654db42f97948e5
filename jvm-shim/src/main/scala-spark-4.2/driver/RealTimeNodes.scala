package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.millpond.base.MillpondError

/** The plans of stateful queries in real-time mode; this Spark has none. */
private object RealTimeNodes {
  val AreStateful = false

  def planned(plan: SparkPlan): SparkPlan =
    throw MillpondError.of(
      "UNSUPPORTED",
      s"Spark ${org.apache.spark.SPARK_VERSION} runs no stateful operator in real-time mode.",
      "Use Spark 4.3, or another trigger.")

  def clear(query: StreamExecution): Unit = ()

  def started(query: StreamExecution): Unit = ()

  def described(query: StreamExecution): Unit = ()
}
