// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.nio.file.{Files, Path}
import java.time.{Instant, LocalDateTime, ZoneOffset}
import java.util.{List => JList, Map => JMap}

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.flink.configuration.Configuration
import org.apache.flink.runtime.checkpoint.CompletedCheckpointStats
import org.apache.flink.runtime.execution.ExecutionState
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings
import org.apache.flink.runtime.minicluster.{MiniCluster, MiniClusterConfiguration}
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
import org.apache.flink.table.api.TableDescriptor
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment
import org.apache.flink.types.{Row, RowKind}

/** Queries of Nexmark as jobs of Flink's SQL, in this process.
  *
  * Arguments: a file with what to do, and the file for the result. `bench_nexmark_flink.py` writes
  * the one and reads the other.
  */
object FlinkNexmark {
  private val json = new ObjectMapper

  def main(args: Array[String]): Unit = {
    val Seq(spec, result) = args.toSeq.map(Path.of(_)): @unchecked
    val asked = json.readTree(Files.readString(spec))
    val conf = new Configuration
    asked.get("conf").properties().forEach(e => conf.setString(e.getKey, e.getValue.asText))
    val found = asked.get("out") match {
      case null => measured(asked, conf)
      case folder => checked(asked, conf, Path.of(folder.asText))
    }
    json.writeValue(result.toFile, found)
    sys.exit(0)
  }

  private def tables(env: StreamExecutionEnvironment, ddl: JsonNode): StreamTableEnvironment = {
    val tables = StreamTableEnvironment.create(env)
    ddl.forEach(statement => tables.executeSql(statement.asText): Unit)
    tables
  }

  /** Writes the rows that each query has in the end, a file each, and returns their numbers. */
  private def checked(asked: JsonNode, conf: Configuration, out: Path): JMap[String, Long] =
    asked.get("queries").properties().asScala.map { e =>
      val query = e.getValue
      val env = StreamExecutionEnvironment.getExecutionEnvironment(conf)
      val changes = tables(env, query.get("ddl")).executeSql(query.get("sql").asText).collect()
      val counts = mutable.HashMap.empty[String, Int].withDefaultValue(0)
      Using.resource(changes)(_.forEachRemaining { row =>
        val text = json.writeValueAsString(plain(row))
        row.getKind match {
          case RowKind.INSERT | RowKind.UPDATE_AFTER => counts(text) += 1
          case _ => counts(text) -= 1
        }
      })
      val lines = counts.iterator.flatMap { case (text, count) =>
        require(count >= 0, s"${e.getKey}: $text is taken back more often than it came")
        Iterator.fill(count)(text)
      }.toSeq
      Files.write(out.resolve(s"${e.getKey}.jsonl"), lines.asJava): Unit
      e.getKey -> lines.size.toLong
    }.toMap.asJava

  /** The values of a row; a time as ms since 1970. */
  private def plain(row: Row): JList[Any] =
    (0 until row.getArity).map { i =>
      row.getField(i) match {
        case at: Instant => at.toEpochMilli
        case at: LocalDateTime => at.toInstant(ZoneOffset.UTC).toEpochMilli
        case other: Any => other
      }
    }.asJava

  /** What each of a number of runs of one query took, and the peak of this process's memory.
    *
    * A run begins with the checkpoint `restore`, if there is one, and makes the file `running` once
    * its tasks run.
    */
  private def measured(asked: JsonNode, conf: Configuration): JMap[String, Any] = {
    val slots = conf.toMap.get("parallelism.default").toInt
    val shape = new MiniClusterConfiguration.Builder()
      .setConfiguration(conf)
      .setNumTaskManagers(1)
      .setNumSlotsPerTaskManager(slots)
      .build()
    val cluster = new MiniCluster(shape)
    cluster.start()
    Option(asked.get("held")).foreach(HeldEvents.hold)
    val runs = (0 until asked.get("runs").asInt).map(_ => run(cluster, asked, conf)).asJava
    Map[String, Any]("runs" -> runs, "peak_rss_bytes" -> peakBytes()).asJava
  }

  private def peakBytes(): Long =
    Files
      .readAllLines(Path.of("/proc/self/status"))
      .asScala
      .collectFirst { case s"VmHWM:$kib kB" => kib.trim.toLong * 1024 }
      .get

  private def run(cluster: MiniCluster, asked: JsonNode, conf: Configuration) = {
    val env = StreamExecutionEnvironment.getExecutionEnvironment(conf)
    val planner = Option(asked.get("held")) match {
      case Some(held) => HeldEvents.tables(env, held)
      case None => tables(env, asked.get("ddl"))
    }
    val sink = TableDescriptor.forConnector("blackhole").build()
    val all = planner.createStatementSet()
    all.add(planner.sqlQuery(asked.get("sql").asText).insertInto(sink)).attachAsDataStream()
    val graph = env.getStreamGraph.getJobGraph()
    Option(asked.get("restore")).foreach { checkpoint =>
      graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(checkpoint.asText))
    }
    cluster.submitJob(graph).get()
    Option(asked.get("running")).foreach { file =>
      while (!isRunning(cluster.getExecutionGraph(graph.getJobID).get())) Thread.sleep(5)
      Files.createFile(Path.of(file.asText)): Unit
    }
    val end = cluster.requestJobResult(graph.getJobID).get()
    if (!end.isSuccess) end.toJobExecutionResult(getClass.getClassLoader): Unit // it throws
    figures(cluster.getArchivedExecutionGraph(graph.getJobID).get())
  }

  private def isRunning(job: AccessExecutionGraph): Boolean =
    job.getAllExecutionVertices.asScala.forall { task =>
      val state = task.getExecutionState
      state == ExecutionState.RUNNING || state == ExecutionState.FINISHED
    }

  private def figures(job: AccessExecutionGraph): JMap[String, Any] = {
    val vertices = job.getVerticesTopologically.asScala.toSeq
    val sources = vertices.filter(_.getName.startsWith("Source: "))
    val began = sources
      .flatMap(_.getTaskVertices)
      .map(_.getStateTimestamp(ExecutionState.RUNNING))
      .min
    val checkpoints = job.getCheckpointStatsSnapshot.getHistory.getCheckpoints.asScala.collect {
      case stats: CompletedCheckpointStats => stats
    }.toSeq.sortBy(_.getCheckpointId)
    val read = sources.flatMap(_.getTaskVertices).map(_.getCurrentExecutionAttempt.getIOMetrics)
    Map[String, Any](
      "ms" -> (job.getStatusTimestamp(job.getState) - began),
      "ended_at_ms" -> job.getStatusTimestamp(job.getState),
      "source_bytes" -> read.map(_.getNumBytesOut).asJava,
      "source_records" -> read.map(_.getNumRecordsOut).asJava,
      "checkpoint_ms" -> checkpoints.map(_.getEndToEndDuration).asJava,
      "checkpoint_at_ms" -> checkpoints.map(_.getTriggerTimestamp - began).asJava,
      "checkpoint_ended_at_ms" -> checkpoints.map(_.getLatestAckTimestamp).asJava,
      "checkpoint_bytes" -> checkpoints.map(_.getStateSize).asJava,
      "vertices" -> vertices.map(_.getName).asJava
    ).asJava
  }
}
