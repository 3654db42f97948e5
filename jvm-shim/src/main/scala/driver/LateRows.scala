package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  Attribute, BasePredicate, BindReferences, BoundReference, Expression, GetStructField,
  LessThanOrEqual, Literal, Predicate
}
import org.apache.spark.sql.types.{DataType, StructType, TimestampNTZType, TimestampType}

/** Which rows come too late. The watermark is a constant of Spark's expression, so Spark's
  * predicate is code that each batch generates and compiles anew, while its tasks wait. */
private[driver] object LateRows {
  /** A predicate that says the same as `Predicate.create`.
    *
    * @param late as Spark's node has it
    * @param columns of the rows */
  def predicate(late: Expression, columns: Seq[Attribute]): BasePredicate =
    BindReferences.bindReference(late, columns) match {
      case LessThanOrEqual(BoundReference(at, kind, _), Literal(micros: Long, _)) if isTime(kind) =>
        new OfColumn(at, micros)
      case LessThanOrEqual(GetStructField(BoundReference(at, window: StructType, _), field, _),
            Literal(micros: Long, _)) if isTime(window(field).dataType) =>
        new OfWindow(at, window.length, field, micros)
      case _ => Predicate.create(late, columns)
    }

  private def isTime(kind: DataType): Boolean = kind == TimestampType || kind == TimestampNTZType

  private final class OfColumn(at: Int, micros: Long) extends BasePredicate {
    override def eval(row: InternalRow): Boolean = !row.isNullAt(at) && row.getLong(at) <= micros
  }

  private final class OfWindow(at: Int, fields: Int, end: Int, micros: Long) extends BasePredicate {
    override def eval(row: InternalRow): Boolean =
      !row.isNullAt(at) && {
        val window = row.getStruct(at, fields)
        !window.isNullAt(end) && window.getLong(end) <= micros
      }
  }
}
