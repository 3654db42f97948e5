package org.apache.spark.sql.millpond.tools

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap
import org.apache.spark.sql.classic.{Dataset, DataStreamWriter, SparkSession}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.runtime.{IncrementalExecution, WatermarkPropagator}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.Json
import org.apache.spark.sql.millpond.driver.{PrivateField, Sinks}
import org.apache.spark.sql.streaming.OutputMode

/** Plans a streaming query over a Spark checkpoint without starting it. `millpond savepoint
  * plan` calls it by py4j. */
object JobPlan {

  /** The query's stateful operators as JSON: number, name, of an aggregation the buffers as they
    * are before the first row, and Spark's error if the operator does not fit what the checkpoint
    * says of it.
    *
    * @param writer what `df.writeStream` gave
    * @param state URI of the checkpoint's folder `state`; Spark writes operator metadata into it
    * @param batch the first one that the query would run
    * @param settings JSON: the session settings that the checkpoint pins */
  def describe(
      writer: DataStreamWriter[_], state: String, batch: Long, settings: String): String = {
    val data = dataOf(writer)
    val mode = field(writer, "outputMode").asInstanceOf[OutputMode]
    val session = data.sparkSession.cloneSession()
    val pinned =
      Json.parse(settings).properties.asScala.map(e => e.getKey -> e.getValue.asText).toMap
    pinned.foreach { case (name, value) => session.conf.set(name, value) }
    val out = Json.obj()
    val operators = out.putArray("operators")
    SQLConf.withExistingConf(session.sessionState.conf) {
      // not the first batch of a run: then Spark plans and numbers operators, and checks nothing
      val planned = execution(session, data, mode, state, batch, pinned, first = false)
      val check = execution(session, data, mode, state, batch, pinned, first = true)
      planned.executedPlan.collect {
        case op: StateStoreWriter if op.stateInfo.isDefined => op
      }.sortBy(_.getStateInfo.operatorId).foreach { op =>
        val one = operators.addObject().put("operator", op.getStateInfo.operatorId)
          .put("name", op.shortName)
        val buffers = one.putArray("buffers")
        EmptyBuffers.of(op.asInstanceOf[SparkPlan]).foreach(value => buffers.add(value.orNull))
        try {
          check.StateSchemaAndOperatorMetadataRule.rule.applyOrElse(op.asInstanceOf[SparkPlan],
            identity[SparkPlan]); ()
        } catch { case NonFatal(e) => one.set[JsonNode]("error", failure(e)); () }
      }
    }
    Json.text(out)
  }

  /** Where a query would write to, as `millpond/sink.json` says it; empty if unknown.
    *
    * @param format, path what `start` is given, if anything */
  def sink(writer: DataStreamWriter[_], format: String, path: String): String = {
    val options = field(writer, "extraOptions").asInstanceOf[CaseInsensitiveMap[String]]
    val source = if (format.nonEmpty) format else field(writer, "source").asInstanceOf[String]
    Json.text(Sinks.planned(dataOf(writer).sparkSession, source,
        Option(path).filter(_.nonEmpty).orElse(options.get("path"))))
  }

  private def execution(session: SparkSession, data: Dataset[_], mode: OutputMode, state: String,
      batch: Long, pinned: Map[String, String], first: Boolean) =
    new IncrementalExecution(
      session,
      data.queryExecution.analyzed,
      mode,
      state,
      UUID.randomUUID,
      UUID.randomUUID,
      batch,
      None,
      OffsetSeqMetadata(0L, 0L, pinned),
      WatermarkPropagator.noop(),
      first
    )

  private def failure(e: Throwable): JsonNode = {
    val known = e match { case t: SparkThrowable => Some(t); case _ => None }
    val condition = known.flatMap(t => Option(t.getCondition)).getOrElse(e.getClass.getSimpleName)
    val out = Json.obj().put("condition", condition).put("message", String.valueOf(e.getMessage))
    val parameters = out.putObject("parameters")
    known.foreach(_.getMessageParameters.asScala.foreach { case (name, value) =>
      parameters.put(name, value)
    })
    out
  }

  private[tools] def dataOf(writer: DataStreamWriter[_]): Dataset[_] =
    field(writer, "ds").asInstanceOf[Dataset[_]]

  /** The writer's own fields are private. */
  private[tools] def field(writer: DataStreamWriter[_], name: String): AnyRef =
    PrivateField.of(classOf[DataStreamWriter[_]], name, "a job cannot be planned", None).get(writer)
}
