package org.apache.spark.sql.millpond.transport

import java.io.DataOutputStream

import scala.collection.mutable.HashMap

import org.apache.spark.sql.Row
import org.apache.spark.sql.execution.python.streaming.{
  TransformWithStateInPySparkStateServer
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}
import org.apache.spark.sql.internal.SQLConf

/** Makes Spark's state server, by the parameters that its tests use. */
private[transport] object SparkServer {
  def apply(
      handle: StatefulProcessorHandleImpl,
      operator: BulkOperator,
      out: DataOutputStream,
      variables: StateVariables,
      iterators: HashMap[String, Iterator[Row]],
      pairs: HashMap[String, Iterator[(Row, Row)]],
      timers: HashMap[String, Iterator[Long]]
  ): TransformWithStateInPySparkStateServer =
    new TransformWithStateInPySparkStateServer(null, handle, operator.keySchema,
      SQLConf.get.arrowTransformWithStateInPySparkMaxStateRecordsPerBatch,
      operator.batchTimestampMs, operator.watermarkMs, out, variables.values, null,
      variables.lists, iterators, variables.maps, pairs, null, timers)
}
