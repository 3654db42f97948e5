package org.apache.spark.sql.millpond.transport

import java.util.UUID

import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.TaskContext
import org.apache.spark.api.python.PythonFunction
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, UnsafeProjection}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}
import org.apache.spark.sql.millpond.base.LimitedReads
import org.apache.spark.sql.streaming.TimeMode
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils

/** What all partitions of one operator have in common. It goes to executors with the tasks. */
private[millpond] final case class BulkOperator(
    runId: UUID,
    function: PythonFunction,
    resultId: Long,
    pandas: Boolean,
    runnerConf: Map[String, String],
    settings: String,
    keySchema: StructType,
    output: Seq[Attribute],
    timeMode: TimeMode,
    batchTimestampMs: Option[Long],
    watermarkMs: Option[Long],
    timeZoneId: String,
    largeVarTypes: Boolean,
    jobArtifactUUID: Option[String],
    frameSize: FrameSize,
    limits: Limits,
    pythonMetrics: Map[String, SQLMetric],
    bulkMetrics: BulkMetrics
) {
  // each task has an operator of its own
  @transient private[transport] lazy val encoders = new TaskEncoders(runId)
  private[millpond] def keyEncoder: ExpressionEncoder[Row] = encoders.resolved(keySchema)

  @transient private lazy val keyDeserializer = keyEncoder.createDeserializer()

  private[transport] def keyOf(key: InternalRow): Row = keyDeserializer(key)

  private[transport] def arrowSchema(schema: StructType): Schema =
    ArrowUtils.toArrowSchema(schema, timeZoneId, true, largeVarTypes)

  /** The worker runs `millpond/transport_entry.py` with the user's pickled function. */
  private[transport] def wrapped: PythonFunction = Entry.wrap(function, "begin", settings)

  /** Run one partition. Whether its worker can take part shows when the worker runs: each may have
    * another Python. Where it cannot, Spark's transport gets the rows, none of which was read.
    *
    * @param reads how the store ends a read of a large state
    * @param refused is told why */
  def run(
      data: BulkRows,
      initialState: Option[BulkRows],
      handle: StatefulProcessorHandleImpl,
      reads: LimitedReads
  )(refused: String => Unit): Iterator[InternalRow] = {
    val context = TaskContext.get()
    val session = new BulkSession(BulkPartition(this, data, initialState, reads), handle,
      bulkMetrics)
    context.addTaskCompletionListener[Unit] { ended =>
      session.close()
      // otherwise somebody may be in the middle of a row
      if (session.isDone && !ended.isFailed() && !ended.isInterrupted()) encoders.giveBack()
    }: Unit
    val runner = new LineRunner(wrapped, jobArtifactUUID, pythonMetrics, session)
    val project = UnsafeProjection.create(output, output)
    import scala.jdk.CollectionConverters._
    def bySpark = session.refused.iterator.flatMap { reason =>
      refused(reason)
      SparkTransport.run(this, data, initialState, handle)
    }
    runner.compute(Iterator.empty, context.partitionId(), context)
      .flatMap(_.rowIterator.asScala).map(project) ++ bySpark
  }
}

private[transport] final case class BulkPartition(
    operator: BulkOperator, data: BulkRows, initialState: Option[BulkRows], reads: LimitedReads)

/** What a user may see of the transport. */
private[millpond] final case class BulkMetrics(metrics: Map[String, SQLMetric]) {
  private[transport] def add(values: Map[String, Long]): Unit =
    values.foreach { case (name, value) => metrics("millpondPython" + name) += value }
}

private[millpond] object BulkMetrics {
  val names: Seq[(String, String)] = Seq(
    "millpondPythonCalls" -> "calls of Python's state API that went one by one",
    "millpondPythonCallsSaved" -> "values that Python read or changed without a call",
    "millpondPythonSentBytes" -> "bytes to Python workers",
    "millpondPythonReceivedBytes" -> "bytes from Python workers",
    "millpondPythonUserMs" -> "time of Python workers in user code",
    "millpondPythonTransportMs" -> "the rest of the time of Python workers"
  )
}
