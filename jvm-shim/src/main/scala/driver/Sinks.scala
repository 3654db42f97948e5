package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.Try
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.datasources.{DataSource, FileFormat}
import org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.sinks.FileStreamSink
import org.apache.spark.sql.millpond.base.Json

/** Writes where a query writes to, `millpond/sink.json` in the Spark checkpoint, before the first
  * task of every run. Spark itself records it nowhere. Commands need it: a file sink keeps a log of
  * batch numbers, which must have no gap. Runs on the driver. */
private[millpond] object Sinks extends Logging {
  private val byRun = new ConcurrentHashMap[UUID, ObjectNode]

  /** The sink of a query that starts now. */
  def of(query: StreamExecution): ObjectNode = query.sink match {
    case file: FileStreamSink =>
      fileSink(query.sparkSession, file.toString.stripPrefix("FileSink[").stripSuffix("]"))
    case other => Json.obj().put("sink", other.getClass.getSimpleName.stripSuffix("$"))
  }

  /** The sink of a query that has not started; empty if unknown. */
  def planned(session: SparkSession, format: String, path: Option[String]): ObjectNode = {
    val isFile = Try {
      val provider = DataSource.lookupDataSource(format, session.sessionState.conf)
      classOf[FileFormat].isAssignableFrom(provider) || classOf[FileDataSourceV2].isAssignableFrom(
        provider)
    }.getOrElse(false) // `foreachBatch` and its like are no data sources
    if (!isFile) Json.obj().put("sink", format)
    else path.fold(Json.obj())(fileSink(session, _))
  }

  private def fileSink(session: SparkSession, path: String): ObjectNode = {
    val short = new Path(path)
    val full = short.getFileSystem(session.sessionState.newHadoopConf()).makeQualified(short)
    Json.obj().put("sink", "file").put("path", full.toString)
      .put("compact_interval", session.sessionState.conf.fileSinkLogCompactInterval)
  }

  def started(query: StreamExecution, run: UUID): Unit =
    try { byRun.put(run, of(query).put("run_id", run.toString)); () }
    catch {
      case NonFatal(e) =>
        logWarning(s"Millpond does not know the sink of query $run: ${e.getMessage}")
    }

  /** Called once for a run, when its state is known to be Millpond's. */
  def note(session: SparkSession, info: StatefulOperatorStateInfo): Unit = {
    val sink = byRun.remove(info.queryRunId)
    if (sink != null) write(session, new Path(info.checkpointLocation).getParent, sink)
  }

  /** Called with the first plan of a run whose session has no extension. */
  def withoutExtension(query: StreamExecution): Unit =
    try {
      val sink = of(query).put("run_id", query.runId.toString).put("extension", false)
      write(query.sparkSession, new Path(query.resolvedCheckpointRoot), sink)
    } catch {
      case NonFatal(e) =>
        logWarning(s"Millpond does not know the sink of query ${query.runId}: ${e.getMessage}")
    }

  private def write(session: SparkSession, root: Path, sink: ObjectNode): Unit = {
    val file = CheckpointPaths.sink(root)
    try LogFiles.overwrite(file, Json.bytes(sink), session.sessionState.newHadoopConf())
    catch { case NonFatal(e) => logWarning(s"$file cannot be written: ${e.getMessage}") }
  }

  def ended(run: UUID): Unit = { byRun.remove(run); () }
}
