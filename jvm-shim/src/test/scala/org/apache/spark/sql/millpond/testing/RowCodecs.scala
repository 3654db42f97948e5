/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.util.Base64

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.JsonNodeFactory

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** Rows as the harness's client writes them, as Spark has them, and back. */
private[testing] object RowCodecs {
  import Arguments.text
  private val nodes = JsonNodeFactory.instance

  /** Converts a JSON array of simple typed values to `UnsafeRow` and back. There is one instance
    * per schema. Projections reuse their row. */
  final class Codec(val schema: StructType) {
    private val project = UnsafeProjection.create(schema)
    def encode(values: JsonNode): UnsafeRow =
      synchronized(project(toInternal(values, schema).asInstanceOf[InternalRow]).copy())
    def decode(row: InternalRow): JsonNode =
      if (row == null) nodes.nullNode else fromInternal(row, schema)
  }

  private def toInternal(v: JsonNode, t: DataType): Any = if (v == null || v.isNull) null
  else t match {
    case s: StructType =>
      require(v.size == s.length, s"${v.size} values for ${s.length} columns")
      new GenericInternalRow(s.fields.zipWithIndex.map { case (f, i) =>
        toInternal(v.get(i), f.dataType)
      })
    case StringType => UTF8String.fromString(v.textValue)
    case LongType | TimestampType => v.longValue
    case IntegerType | DateType => v.intValue
    case ShortType => v.intValue.toShort
    case ByteType => v.intValue.toByte
    case FloatType => v.floatValue
    case DoubleType => v.doubleValue
    case BooleanType => v.booleanValue
    case BinaryType => Base64.getDecoder.decode(v.textValue)
    case d: DecimalType => Decimal(new java.math.BigDecimal(v.textValue), d.precision, d.scale)
    case NullType => null
    case other => throw new IllegalArgumentException(s"type $other")
  }

  private def fromInternal(v: Any, t: DataType): JsonNode = if (v == null) nodes.nullNode
  else t match {
    case s: StructType =>
      val a = nodes.arrayNode()
      val row = v.asInstanceOf[InternalRow]
      s.fields.zipWithIndex.foreach { case (f, i) =>
        a.add(
          if (row.isNullAt(i)) nodes.nullNode else fromInternal(row.get(i, f.dataType), f.dataType))
      }
      a
    case BinaryType => nodes.textNode(Base64.getEncoder.encodeToString(v.asInstanceOf[Array[Byte]]))
    case StringType | _: DecimalType => nodes.textNode(v.toString)
    case BooleanType => nodes.booleanNode(v.asInstanceOf[Boolean])
    case DoubleType => nodes.numberNode(v.asInstanceOf[Double])
    case IntegerType | DateType => nodes.numberNode(v.asInstanceOf[Int])
    case ShortType => nodes.numberNode(v.asInstanceOf[Short].toInt)
    case ByteType => nodes.numberNode(v.asInstanceOf[Byte].toInt)
    case FloatType => nodes.numberNode(v.asInstanceOf[Float].toDouble)
    case LongType | TimestampType => nodes.numberNode(v.asInstanceOf[Long])
    case NullType => nodes.nullNode
    case other => throw new IllegalArgumentException(s"type $other")
  }

  private val codecs = mutable.Map.empty[String, Codec]
  /** Returns the codec of a schema. A new codec compiles code, so each schema has one. */
  def codecOf(ddl: String): Codec = codecs.getOrElseUpdate(ddl, new Codec(schemaOf(ddl)))
  private val prefixCodecs = mutable.Map.empty[StructType, Codec]
  def codecOf(schema: StructType): Codec =
    prefixCodecs.getOrElseUpdate(schema, new Codec(schema))
  private def schemaOf(ddl: String): StructType =
    if (ddl.isEmpty) new StructType else StructType.fromDDL(ddl)

  def specOf(schema: StructType, spec: JsonNode): KeyStateEncoderSpec =
    text(spec, "type", "none") match {
      case "none" => NoPrefixKeyStateEncoderSpec(schema)
      case "prefix" => PrefixKeyScanStateEncoderSpec(schema, spec.get("columns").intValue)
      case "range" =>
        RangeKeyScanStateEncoderSpec(schema,
          spec.get("ordinals").elements().asScala.map(_.intValue).toSeq)
      case "ts_prefix" => TimestampAsPrefixKeyStateEncoderSpec(schema)
      case "ts_postfix" => TimestampAsPostfixKeyStateEncoderSpec(schema)
      case other => throw new IllegalArgumentException(s"spec $other")
    }

  /** Returns the codec of the row that `prefixScan` takes: the leading columns, or the ordering
    * columns, or the key without its time. */
  def prefixCodec(schema: StructType, spec: JsonNode): Codec =
    text(spec, "type", "none") match {
      case "prefix" => codecOf(StructType(schema.take(spec.get("columns").intValue)))
      case "range" =>
        codecOf(
          StructType(spec.get("ordinals").elements().asScala.map(i => schema(i.intValue)).toSeq))
      case "ts_postfix" => codecOf(StructType(schema.dropRight(1)))
      case _ => codecOf(schema)
    }
}
