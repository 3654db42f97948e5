/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{ArrayNode, JsonNodeFactory}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, Literal, Murmur3Hash, Pmod}
import org.apache.spark.sql.execution.streaming.operators.stateful.StatePartitionKeyExtractorFactory
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  StateVariableType, TransformWithStateVariableInfo
}
import org.apache.spark.sql.types.StructType

/** Which partition a key belongs to: by Spark, and by the shim. */
private[testing] object Placement {
  import Arguments.text
  import RowCodecs.codecOf
  private val nodes = JsonNodeFactory.instance

  /** Returns the partition to which Spark's shuffle sends each key. */
  def byShuffle(c: JsonNode): ArrayNode = {
    val codec = codecOf(text(c, "key"))
    val partition = partitionOf(codec.schema, c.get("partitions").intValue)
    answers(c.get("keys"))(k => partition(codec.encode(k)))
  }

  /** Returns the partition of each state key by Spark's own offline tools. */
  def byOfflineTools(c: JsonNode): ArrayNode = {
    val codec = codecOf(text(c, "key"))
    val variable = Option(c.get("variable")).filterNot(_.isNull).map(_.asText.split(":"))
      .map(v =>
        TransformWithStateVariableInfo(v(0), StateVariableType.withName(v(1)), v(2).toBoolean))
    val extractor = StatePartitionKeyExtractorFactory.create(text(c, "operator"), codec.schema,
      text(c, "store", "default"), text(c, "cf", "default"),
      Option(c.get("format")).filterNot(_.isNull).map(_.intValue), variable)
    val partition = partitionOf(extractor.partitionKeySchema, c.get("partitions").intValue)
    answers(c.get("keys"))(k => partition(extractor.partitionKey(codec.encode(k))))
  }

  /** Returns slots by the shim's key-group arithmetic. Reflection, because this file also
    * compiles without the shim. */
  def slots(c: JsonNode): ArrayNode = {
    val cls = Class.forName("org.apache.spark.sql.millpond.rows.KeyGroups")
    val groups = cls.getConstructor(classOf[Int], classOf[Int])
      .newInstance(Integer.valueOf(c.get("max_parallelism").intValue),
        Integer.valueOf(c.get("base").intValue))
    val slot = cls.getMethod("slot", classOf[Int])
    answers(c.get("groups"))(g =>
      slot.invoke(groups, Integer.valueOf(g.intValue)).asInstanceOf[Int])
  }

  private def partitionOf(schema: StructType, partitions: Int): InternalRow => Int = {
    val columns = schema.fields.zipWithIndex.map { case (f, i) =>
      BoundReference(i, f.dataType, f.nullable)
    }
    val expr = Pmod(new Murmur3Hash(columns.toSeq), Literal(partitions))
    row => expr.eval(row).asInstanceOf[Int]
  }

  private def answers(of: JsonNode)(answer: JsonNode => Int): ArrayNode = {
    val out = nodes.arrayNode()
    of.elements().asScala.foreach(one => out.add(answer(one)))
    out
  }
}
