package org.apache.spark.sql.millpond.rows

import java.time.LocalDate

import org.apache.spark.sql.catalyst.expressions.{
  And, BasePredicate, Expression, GetStructField, GreaterThanOrEqual, IsNaN, IsNull, LessThan,
  Literal, Or, Predicate
}
import org.apache.spark.sql.types.{
  DateType, DecimalType, FractionalType, IntegralType, StructType, TimestampType
}

/** Keys of `transformWithState` that Spark may have made of other keys, by which it placed them.
  * What it may make a key of, the key does not tell. */
private[rows] object MadeKeys {
  // Java's older classes go from the 4th to the 15th. Of a day between them Spark makes the 15th,
  // or within a struct the tenth after it.
  private val First = LocalDate.of(1582, 10, 15).toEpochDay
  private val End = LocalDate.of(1582, 10, 25).toEpochDay
  private val DayUs = 86400L * 1000000L // a zone moves a time by less

  /** Whether a key may be one; null: none can.
    * @param columns by which Spark would place it
    * @param lossy pandas made the key */
  def test(columns: Seq[Expression], lossy: Boolean): BasePredicate = {
    val tests = columns.flatMap(c => if (lossy) lost(c) ++ moved(c) else moved(c))
    tests.reduceOption(Or(_, _)).map(Predicate.create(_)).orNull
  }

  private def lost(column: Expression): Seq[Expression] = column.dataType match {
    case _: DecimalType => Nil
    case _: FractionalType => Seq(IsNaN(column))
    case _: IntegralType => Seq(IsNull(column))
    case _ => Nil
  }

  private def moved(column: Expression): Seq[Expression] = column.dataType match {
    case DateType => Seq(within(column, First.toInt, End.toInt))
    case TimestampType => Seq(within(column, (First - 1) * DayUs, (End + 1) * DayUs))
    case StructType(fields) => fields.indices.flatMap(i => moved(GetStructField(column, i)))
    case _ => Nil
  }

  private def within(column: Expression, first: Any, end: Any): Expression = And(
    GreaterThanOrEqual(column, Literal.create(first, column.dataType)),
    LessThan(column, Literal.create(end, column.dataType)))
}
