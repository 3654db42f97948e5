package org.apache.spark.sql.millpond.transport

import java.io.{DataInputStream, DataOutputStream}

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.python.{
  BasePythonRunner, ChainedPythonFunctions, PythonEvalType, PythonFunction, PythonWorker,
  PythonWorkerUtils, SpecialLengths
}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.vectorized.ColumnarBatch

/** Runs the worker of one partition. The worker's pool, its start, its death, its errors and its
  * end are Spark's; only what is said in between is not. */
private[transport] abstract class BulkRunner(
    function: PythonFunction,
    jobArtifactUUID: Option[String],
    pythonMetrics: Map[String, SQLMetric],
    session: BulkSession
) extends BasePythonRunner[Unit, ColumnarBatch](Seq(ChainedPythonFunctions(Seq(function))),
      PythonEvalType.NON_UDF, Array(Array(0)), jobArtifactUUID, pythonMetrics) {

  override protected def newWriter(
      env: SparkEnv,
      worker: PythonWorker,
      nothing: Iterator[Unit],
      partitionIndex: Int,
      context: TaskContext
  ): Writer = new Writer(env, worker, nothing, partitionIndex, context) {
    override protected def writeCommand(dataOut: DataOutputStream): Unit =
      PythonWorkerUtils.writePythonFunction(function, dataOut)
    // the session writes all that follows, and the end of the stream
    override def writeNextInputToStream(dataOut: DataOutputStream): Boolean = false
    override def close(dataOut: DataOutputStream): Unit = ()
  }

  /** What a line's `newReaderIterator` returns does this in `read`. */
  protected final class Conversation(stream: DataInputStream, worker: PythonWorker) {
    private val pipe = new WorkerPipe(worker, stream,
      if (killOnIdleTimeout) idleTimeoutSeconds * 1000 else 0)
    val in = new DataInputStream(pipe)

    /** The next results; nothing when the worker sends one of Spark's own sections.
      *
      * @param special handles a section, and says whether the stream is at its end */
    def next(special: Int => Boolean): ColumnarBatch = {
      var batch: Option[ColumnarBatch] = None
      var over = false
      while (batch.isEmpty && !over) {
        session.pump(pipe)
        val length = in.readInt()
        if (length < 0) over = special(length)
        else {
          val payload = new Array[Byte](length)
          in.readFully(payload)
          pythonMetrics("pythonDataReceived") += length.toLong
          batch = session.handle(payload, pipe)
          if (payload(0) == Frame.Done || payload(0) == Frame.Refused) {
            val end = java.nio.ByteBuffer.allocate(4).putInt(0, SpecialLengths.END_OF_STREAM)
            pipe.write(end)
            pythonMetrics("pythonDataSent") += pipe.bytesOut
          }
        }
      }
      batch.orNull
    }
  }

}
