package org.apache.spark.sql.millpond.base

import org.apache.spark.sql.types.{MetadataBuilder, StructType}

/** Whether Spark places the keys of an operator by a text's collation. The schemas of its state say
  * string, without the collation. So the operator says it in the schema with which it opens its
  * stores, and of which they have no row. */
object CollatedKeys {
  private val Mark = "millpond.collatedKeys"

  def marked(schema: StructType): StructType =
    StructType(schema.map(field =>
      field.copy(metadata =
        new MetadataBuilder().withMetadata(field.metadata).putBoolean(Mark, true).build())))

  def areOf(schema: StructType): Boolean = schema.exists(_.metadata.contains(Mark))
}
