// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import scala.collection.concurrent.TrieMap
import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.flink.api.common.functions.MapFunction
import org.apache.flink.configuration.Configuration
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
import org.apache.flink.table.api.Schema
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment
import org.apache.flink.table.data.{GenericRowData, RowData, StringData}
import org.apache.flink.table.runtime.typeutils.{InternalTypeInfo, RowDataSerializer}
import org.apache.flink.table.types.logical.{BigIntType, LogicalType, RowType, VarCharType}

/** Events that this process holds, in Flink's own form of rows, and tables of them.
  *
  * What is asked for names for each kind its `columns`, as SQL has them, the `halves`, statements
  * that make a table of each reader's file, and `marked`: whether there are watermarks.
  */
private object HeldEvents {
  private[bench] val rows = TrieMap.empty[String, Array[RowData]]

  private final case class Column(text: String) {
    val Array(name, sql) = text.split(' '): @unchecked
    def logical: LogicalType = sql match {
      case "BIGINT" => new BigIntType
      case "STRING" => VarCharType.STRING_TYPE
    }
  }

  private def columns(kind: JsonNode): Seq[Column] =
    kind.get("columns").asScala.map(column => Column(column.asText)).toSeq

  private def typed(of: Seq[Column]): RowType =
    RowType.of(of.map(_.logical).toArray, of.map(_.name).toArray)

  /** Reads the events of each kind: those of the first reader, then those of the second. */
  def hold(asked: JsonNode): Unit = {
    val conf = new Configuration
    conf.setString("parallelism.default", "1")
    asked.properties().forEach { e =>
      val of = columns(e.getValue)
      val serializer = new RowDataSerializer(typed(of))
      val read = ArrayBuffer.empty[RowData]
      e.getValue.get("halves").forEach { ddl =>
        val env = StreamExecutionEnvironment.getExecutionEnvironment(conf)
        val tables = StreamTableEnvironment.create(env)
        tables.executeSql(ddl.asText): Unit
        val names = of.map(column => s"`${column.name}`").mkString(", ")
        val all = tables.executeSql(s"SELECT $names FROM ${e.getKey}").collect()
        Using.resource(all)(_.forEachRemaining { row =>
          val values = (0 until row.getArity).map { i =>
            row.getField(i) match {
              case text: String => StringData.fromString(text)
              case other: AnyRef => other
            }
          }
          read += serializer.toBinaryRow(GenericRowData.of(values: _*)).copy()
        })
      }
      rows.put(e.getKey, read.toArray): Unit
    }
  }

  /** Makes a table of each kind. Its first reader has the first half of the rows. */
  def tables(env: StreamExecutionEnvironment, asked: JsonNode): StreamTableEnvironment = {
    val tables = StreamTableEnvironment.create(env)
    asked.properties().forEach { e =>
      val of = columns(e.getValue)
      val schema = Schema.newBuilder()
      of.foreach(column => schema.column(column.name, column.sql): Unit)
      schema.columnByExpression("at", "TO_TIMESTAMP_LTZ(date_time, 3)"): Unit
      if (e.getValue.get("marked").asBoolean)
        schema.watermark("at", "`at` - INTERVAL '4' SECOND"): Unit
      val stream = env
        .fromSequence(0, rows(e.getKey).length - 1L)
        .map(new HeldRow(e.getKey))
        .returns(InternalTypeInfo.of(typed(of)))
      tables.createTemporaryView(e.getKey, stream, schema.build())
    }
    tables
  }
}

private final class HeldRow(kind: String) extends MapFunction[java.lang.Long, RowData] {
  @transient private lazy val rows = HeldEvents.rows(kind)
  override def map(number: java.lang.Long): RowData = rows(number.intValue)
}
