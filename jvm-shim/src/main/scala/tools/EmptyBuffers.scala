package org.apache.spark.sql.millpond.tools

import java.util.HexFormat

import org.apache.spark.sql.catalyst.expressions.{Attribute, SpecificInternalRow}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  SessionWindowStateStoreSaveExec, StateStoreSaveExec
}
import org.apache.spark.sql.types.{ArrayType, BinaryType, DataType, MapType, StructType}

/** What the buffers of an aggregation hold before the first row. A column that a changed job adds
  * to saved state begins with it. */
private[tools] object EmptyBuffers {

  /** The value of each buffer column as text, in the order of the state; None: null, or a value
    * that has no text. Empty: `op` saves no aggregates. */
  def of(op: SparkPlan): Seq[Option[String]] = op match {
    case _: StateStoreSaveExec | _: SessionWindowStateStoreSaveExec =>
      op.collectFirst { case aggregation: BaseAggregateExec =>
        aggregation.aggregateExpressions.flatMap(e => buffers(e.aggregateFunction))
      }.getOrElse(Nil)
    case _ => Nil
  }

  private def buffers(function: AggregateFunction): Seq[Option[String]] =
    function match {
      case f: DeclarativeAggregate =>
        f.aggBufferAttributes.zip(f.initialValues).map { case (attribute, initial) =>
          told(attribute, if (initial.foldable) initial.eval() else null)
        }
      case f: TypedImperativeAggregate[_] => f.aggBufferAttributes.map(told(_, serialized(f)))
      case f: ImperativeAggregate =>
        val row = new SpecificInternalRow(f.aggBufferAttributes.map(_.dataType))
        f.withNewMutableAggBufferOffset(0).initialize(row)
        f.aggBufferAttributes.zipWithIndex.map { case (attribute, i) =>
          told(attribute, row.get(i, attribute.dataType))
        }
      case other => other.aggBufferAttributes.map(told(_, null))
    }

  private def serialized[T](function: TypedImperativeAggregate[T]): Array[Byte] =
    function.serialize(function.createAggregationBuffer())

  private def told(attribute: Attribute, value: Any): Option[String] =
    Option(value).flatMap(text(_, attribute.dataType))

  private def text(value: Any, kind: DataType): Option[String] = (value, kind) match {
    case (bytes: Array[Byte], BinaryType) => Some(HexFormat.of().formatHex(bytes))
    case (_, _: ArrayType | _: MapType | _: StructType) => None
    case _ => Some(value.toString)
  }
}
