package org.apache.spark.sql.millpond.transport

import java.io.DataInputStream
import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.python.{PythonFunction, PythonWorker, SpecialLengths}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.millpond.base.MillpondError
import org.apache.spark.sql.vectorized.ColumnarBatch

/** What differs in a runner of Python workers by Spark's version; this is 4.2. */
private[transport] final class LineRunner(
    function: PythonFunction,
    jobArtifactUUID: Option[String],
    pythonMetrics: Map[String, SQLMetric],
    session: BulkSession
) extends BulkRunner(function, jobArtifactUUID, pythonMetrics, session) {
  override protected def newReaderIterator(
      stream: DataInputStream,
      writer: Writer,
      startTime: Long,
      env: SparkEnv,
      worker: PythonWorker,
      pid: Option[Int],
      releasedOrClosed: AtomicBoolean,
      context: TaskContext
  ): Iterator[ColumnarBatch] = {
    val conversation = new Conversation(stream, worker)
    new ReaderIterator(conversation.in, writer, startTime, env, worker, pid, releasedOrClosed,
      context) {
      override protected def read(): ColumnarBatch = {
        writer.exception.foreach(throw _)
        try conversation.next {
            case SpecialLengths.TIMING_DATA =>
              handleTimingData()
              false
            case SpecialLengths.PYTHON_EXCEPTION_THROWN => throw handlePythonException()
            case SpecialLengths.END_OF_DATA_SECTION =>
              handleEndOfDataSection()
              true
            case other => throw MillpondError.internal(s"a worker sent the section $other")
          }
        catch handleException
      }
    }
  }
}
