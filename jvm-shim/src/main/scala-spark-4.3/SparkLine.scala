package org.apache.spark.sql.millpond

import java.nio.ByteBuffer

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.state.{
  ReadStateStore, StateStoreCustomMetric, StateStoreCustomSizeMetric, StateStoreProvider
}
import org.apache.spark.unsafe.Platform

/** What differs between minor lines of Spark; this is 4.3. */
private[millpond] object SparkLine {
  /** A size in bytes, and not that of a snapshot. */
  def sizeMetric(name: String, description: String): StateStoreCustomMetric =
    StateStoreCustomSizeMetric(name, description)

  /** Where a direct buffer begins. */
  def addressOf(buffer: ByteBuffer): Long = Platform.getDirectBufferAddress(buffer)

  /** The constructor argument of the node's output. */
  def outputAttributes(node: TransformWithStateInPySparkExec): Seq[Attribute] = node.outputAttrs

  /** A store at a version, to be read with these column families; without them if it has none. As Spark's state reader opens it: families are
    * made known to the provider by one store and read by another. */
  def readStore(provider: StateStoreProvider, version: Long, id: Option[String],
      families: Seq[(String, MillpondStateStoreProvider.FamilyDefinition)]): ReadStateStore = {
    if (families.nonEmpty) {
      val first = provider.getReadStore(version, id)
      try families.foreach { case (name, d) =>
          first.registerColFamily(name, d.spec.keySchema, d.valueSchema, d.spec, d.multi,
            d.internal)
        }
      finally first.release()
    }
    provider.getReadStore(version, id)
  }
}
