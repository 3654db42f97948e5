package org.apache.spark.sql.millpond.base

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.state.{
  StateStoreCustomMetric, StateStoreCustomSizeMetric
}
import org.apache.spark.unsafe.Platform

/** What differs between minor versions of Spark; this is 4.2. */
private[millpond] object SparkCompatibility {
  /** Bytes of a batch. */
  def sizeMetric(name: String, description: String): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, description)

  /** Bytes that are there; only 4.3 tells them from those of a batch. */
  def gaugeMetric(name: String, description: String): StateStoreCustomMetric =
    sizeMetric(name, description)

  /** Where a direct buffer begins. */
  def addressOf(buffer: ByteBuffer): Long = Platform.getDirectBufferAddress(buffer)

  /** The constructor argument of the node's output. */
  def outputAttributes(node: TransformWithStateInPySparkExec): Seq[Attribute] = node.output

  /** Whether `millpond.transport.spark_pandas` knows this Spark's conversions of pandas. */
  val bulkPandas: Boolean = false
}
