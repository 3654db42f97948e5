package org.apache.spark.sql.millpond.rows

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec
import org.apache.spark.sql.types.StructType

/** A column family as an operator defined it. */
final case class FamilyDefinition(keySchema: StructType, valueSchema: StructType,
    spec: KeyStateEncoderSpec, internal: Boolean, multi: Boolean)
