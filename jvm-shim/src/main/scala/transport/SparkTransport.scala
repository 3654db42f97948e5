package org.apache.spark.sql.millpond.transport

import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.python.PythonRowsAccess
import org.apache.spark.sql.execution.python.streaming.{
  TransformWithStateInPySparkPythonInitialStateRunner, TransformWithStateInPySparkPythonRunner
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}

/** Spark's own transport in a task that has begun: what Spark's node does, with its classes. */
private[transport] object SparkTransport {
  def run(
      operator: BulkOperator,
      data: BulkRows,
      initialState: Option[BulkRows],
      handle: StatefulProcessorHandleImpl
  ): Iterator[InternalRow] = {
    import PythonEvalType._
    val functions = Seq(ChainedPythonFunctions(Seq(operator.function)) -> operator.resultId)
    initialState match {
      case None =>
        val kind =
          if (operator.pandas) SQL_TRANSFORM_WITH_STATE_PANDAS_UDF
          else SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF
        PythonRowsAccess.results(data.groups, operator.output,
          new TransformWithStateInPySparkPythonRunner(functions, kind, Array(data.offsets),
            data.schema, handle, operator.timeZoneId, operator.runnerConf, operator.pythonMetrics,
            operator.jobArtifactUUID, operator.keySchema, operator.batchTimestampMs,
            operator.watermarkMs))
      case Some(initial) =>
        val kind =
          if (operator.pandas) SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF
          else SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_INIT_STATE_UDF
        // a group, and whether it is of the initial state
        val groups = initial.groups.map(_ -> true) ++ data.groups.map(_ -> false)
        PythonRowsAccess.results(groups, operator.output,
          new TransformWithStateInPySparkPythonInitialStateRunner(functions, kind,
            Array(data.offsets ++ initial.offsets), data.schema, initial.schema, handle,
            operator.timeZoneId, operator.runnerConf, operator.pythonMetrics,
            operator.jobArtifactUUID, operator.keySchema, operator.batchTimestampMs,
            operator.watermarkMs))
    }
  }
}
