package org.apache.spark.sql.execution.python

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute

/** The way to [[PandasGroupUtils]], which is private to this package of Spark's. */
object PythonRowsAccess {
  /** The columns that a worker gets, each once, and where keys and values are among them. */
  def columns(output: Seq[Attribute], grouping: Seq[Attribute]): (Seq[Attribute], Array[Int]) =
    PandasGroupUtils.resolveArgOffsets(output, grouping)

  def byKey(
      rows: Iterator[InternalRow],
      grouping: Seq[Attribute],
      output: Seq[Attribute],
      columns: Seq[Attribute]
  ): Iterator[(InternalRow, Iterator[InternalRow])] =
    PandasGroupUtils.groupAndProject(rows, grouping, output, columns)
}
