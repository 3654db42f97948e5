package org.apache.spark.sql.millpond.transport

import java.io.DataOutputStream

import scala.collection.mutable.HashMap

import org.apache.spark.sql.Row
import org.apache.spark.sql.execution.python.streaming.{
  ListStateInfo, MapStateInfo, TransformWithStateInPySparkStateServer, ValueStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** Makes Spark's state server, by the parameters that its tests use. */
private[transport] object SparkServer {
  def apply(
      handle: StatefulProcessorHandleImpl,
      keySchema: StructType,
      batchTimestampMs: Option[Long],
      watermarkMs: Option[Long],
      out: DataOutputStream,
      values: HashMap[String, ValueStateInfo],
      lists: HashMap[String, ListStateInfo],
      iterators: HashMap[String, Iterator[Row]],
      maps: HashMap[String, MapStateInfo],
      pairs: HashMap[String, Iterator[(Row, Row)]],
      timers: HashMap[String, Iterator[Long]]
  ): TransformWithStateInPySparkStateServer =
    new TransformWithStateInPySparkStateServer(null, handle, keySchema,
      SQLConf.get.arrowTransformWithStateInPySparkMaxStateRecordsPerBatch, batchTimestampMs,
      watermarkMs, out, values, null, lists, iterators, maps, pairs, null, timers)
}
