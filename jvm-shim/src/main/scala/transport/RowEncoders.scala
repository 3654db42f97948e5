package org.apache.spark.sql.millpond.transport

import java.util.UUID
import java.util.concurrent.ConcurrentLinkedQueue

import scala.collection.mutable

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.analysis.Analyzer
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.types.StructType

/** What the tasks of one run in this JVM have in common for rows of one schema: the encoder as it
  * is made and as it is resolved, and the converters that no task uses at the moment. */
private final class RowEncoders(schema: StructType) {
  val plain: ExpressionEncoder[Row] = ExpressionEncoder(schema)
  val resolved: ExpressionEncoder[Row] = plain.resolveAndBind()
  val serializers = new ConcurrentLinkedQueue[ExpressionEncoder.Serializer[Row]]
  val deserializers = new ConcurrentLinkedQueue[ExpressionEncoder.Deserializer[Row]]
}

/** To resolve an encoder takes the analyzer some milliseconds, and a converter generates its code
  * before it finds it compiled. Each task of a small batch needs several of both. They depend on
  * the session's options, which are the same for a run of a query. */
private object RowEncoders {
  private val found = new Recent[(UUID, StructType), RowEncoders](256)

  /** @param runId of the query that has state of these rows */
  def of(runId: UUID, schema: StructType): RowEncoders =
    found((runId, schema))(new RowEncoders(schema))
}

/** The encoders of one task. A converter is for one user at a time, because it fills the same
  * buffer again: a task borrows those that it needs, and gives them back at its end. */
private[transport] final class TaskEncoders(runId: UUID) {
  private val borrowed = mutable.ArrayBuffer.empty[() => Unit]

  private def borrow[A](idle: ConcurrentLinkedQueue[A], make: => A): A = borrowed.synchronized {
    val one = Option(idle.poll()).getOrElse(make)
    borrowed += (() => idle.add(one): Unit)
    one
  }

  /** An encoder for Spark's own classes, which resolve it themselves. */
  def plain(schema: StructType): ExpressionEncoder[Row] = {
    val shared = RowEncoders.of(runId, schema)
    new Lending(shared, shared.plain)
  }

  def resolved(schema: StructType): ExpressionEncoder[Row] = {
    val shared = RowEncoders.of(runId, schema)
    new Lending(shared, shared.resolved)
  }

  /** Give back all converters. Nobody uses them any more. */
  def giveBack(): Unit = borrowed.synchronized {
    borrowed.foreach(_())
    borrowed.clear()
  }

  private final class Lending(shared: RowEncoders, of: ExpressionEncoder[Row])
      extends ExpressionEncoder[Row](of.encoder, of.objSerializer, of.objDeserializer) {
    // Spark's state classes bind an encoder to its own schema, and to no other
    override def resolveAndBind(
        attributes: Seq[Attribute], analyzer: Analyzer): ExpressionEncoder[Row] =
      if (of eq shared.resolved) this else new Lending(shared, shared.resolved)
    override def createSerializer(): ExpressionEncoder.Serializer[Row] =
      borrow(shared.serializers, of.createSerializer())
    override def createDeserializer(): ExpressionEncoder.Deserializer[Row] =
      borrow(shared.deserializers, of.createDeserializer())
  }
}
