package org.apache.spark.sql.execution.python

import org.apache.spark.api.python.BasePythonRunner
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.vectorized.ColumnarBatch

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

  /** The rows that `runner` makes of `input`. */
  def results[A](
      input: Iterator[A],
      output: Seq[Attribute],
      runner: BasePythonRunner[A, ColumnarBatch]
  ): Iterator[InternalRow] = PandasGroupUtils.executePython(input, output, runner)
}
