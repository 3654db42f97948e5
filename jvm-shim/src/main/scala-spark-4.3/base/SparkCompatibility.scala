package org.apache.spark.sql.millpond.base

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.state.{
  StateStoreCustomMetric, StateStoreCustomSizeMetric
}
import org.apache.spark.unsafe.Platform

/** What differs between minor versions of Spark; this is 4.3. */
private[millpond] object SparkCompatibility {
  /** Bytes of a batch: none, where no batch ran. */
  def sizeMetric(name: String, description: String): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, description)

  /** Bytes that are there, whether or not a batch ran: Spark calls that a snapshot. */
  def gaugeMetric(name: String, description: String): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, description, isSnapshot = true)

  /** Where a direct buffer begins. */
  def addressOf(buffer: ByteBuffer): Long = Platform.getDirectBufferAddress(buffer)

  /** The constructor argument of the node's output. */
  def outputAttributes(node: TransformWithStateInPySparkExec): Seq[Attribute] = node.outputAttrs

  /** Whether `millpond.transport.spark_pandas` knows this Spark's conversions of pandas. */
  val bulkPandas: Boolean = true
}
