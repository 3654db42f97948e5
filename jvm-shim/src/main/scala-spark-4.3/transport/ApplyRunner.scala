package org.apache.spark.sql.millpond.transport

import java.io.DataOutputStream

import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType, PythonWorkerUtils}
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.streaming.ApplyInPandasWithStatePythonRunner
import ApplyInPandasWithStatePythonRunner.OutType
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarBatch}

/** Spark's runner of `applyInPandasWithState`, whose worker runs `millpond/transport_entry.py`.
  * What goes to the worker and comes from it is Spark's.
  *
  * @param refused is told why a worker ran Spark's own loop */
private[millpond] final class ApplyRunner(
    operator: ApplyOperator,
    rows: StructType,
    stateEncoder: ExpressionEncoder[Row],
    keys: StructType,
    output: StructType,
    state: StructType,
    metrics: Map[String, SQLMetric],
    keysMetric: SQLMetric
)(refused: String => Unit)
    extends ApplyInPandasWithStatePythonRunner(
      Seq(ChainedPythonFunctions(Seq(operator.function)) -> operator.resultId),
      PythonEvalType.NON_UDF,
      Array(operator.offsets),
      rows,
      operator.timeZoneId,
      operator.runnerConf,
      stateEncoder,
      keys,
      output,
      state,
      metrics,
      operator.jobArtifactUUID
    ) {
  override protected def writeUDF(out: DataOutputStream): Unit =
    PythonWorkerUtils.writePythonFunction(operator.wrapped, out)

  override protected def deserializeColumnarBatch(
      batch: ColumnarBatch, schema: StructType): OutType = {
    // `entry.py` gives it another name
    val first = schema.head.name
    if (first == "_0")
      keysMetric += batch.column(0).asInstanceOf[ArrowColumnVector].getChild(1).getInt(0).toLong
    else refused(first)
    super.deserializeColumnarBatch(batch, schema)
  }
}
