package org.apache.spark.sql.millpond.transport

import scala.collection.mutable

import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils

/** The Arrow columns of one session. */
private[transport] final class ArrowMemory(operator: BulkOperator) {
  private val roots = mutable.ArrayBuffer.empty[VectorSchemaRoot]
  val allocator =
    ArrowUtils.rootAllocator.newChildAllocator("millpond-transport", 0, Long.MaxValue)

  def root(schema: Schema): VectorSchemaRoot = {
    val root = VectorSchemaRoot.create(schema, allocator)
    roots += root
    root
  }

  def root(schema: StructType): VectorSchemaRoot = root(operator.arrowSchema(schema))

  def close(): Unit = {
    roots.foreach(_.close())
    allocator.close()
  }
}
