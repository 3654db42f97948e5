package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.millpond.agent.{Agent, HadoopFiles, StorageAccess}
import org.apache.spark.sql.millpond.base.{
  Json, LocalDirs, MillpondError, MillpondException, Options
}

/** Lets the driver's agent try the storage once for every run of a query, before its first task.
  * A missing bucket or right should end the query at its start, not in a task. State in a `file:`
  * checkpoint needs no check: Spark has just written there. In local mode an agent that cannot
  * start ends the query here too; on a cluster only an executor can tell. */
private object StartCheck extends Logging {
  private val checked = ConcurrentHashMap.newKeySet[UUID]

  def isDone(run: UUID): Boolean = checked.contains(run)

  def check(session: SparkSession, info: StatefulOperatorStateInfo, options: Options): Unit = {
    // the driver is the executor: the tasks need the same agent
    if (session.sparkContext.isLocal) {
      LocalDirs.configure(options.string("localDir"))
      Agent.ready(options.agentSettings)
    }
    val conf = session.sessionState.newHadoopConf()
    val root = new Path(info.checkpointLocation)
    val local = root.getFileSystem(conf).getUri.getScheme == "file"
    if (!local || options.string("storage.uri").isDefined || root.getFileSystem(conf).exists(
        CheckpointPaths.storage(root.getParent))) {
      LocalDirs.configure(options.string("localDir"))
      HadoopFiles.remember(info.checkpointLocation, conf)
      val request = Json.obj().put("root", info.checkpointLocation)
      request.set[JsonNode]("options", options.json)
      StorageAccess.hand(request, conf)
      // a driver may have no Python for the agent; then the tasks try the storage
      try { Agent.call("check_start", request, options.agentSettings); () }
      catch {
        case e: MillpondException if e.kind.startsWith("AGENT_") =>
          logWarning(s"the storage was not tried before the query's first task: ${e.getMessage}")
          refuseUnfinished(root.getParent, conf)
      }
    }
    checked.add(info.queryRunId)
    ()
  }

  /** For those who cannot ask the agent: whether a command has not made the Spark checkpoint to its
    * end. A query would begin at batch 0, above half of its state. */
  def refuseUnfinished(checkpoint: Path, conf: Configuration): Unit =
    if (checkpoint.getFileSystem(conf).exists(CheckpointPaths.claim(checkpoint)))
      throw MillpondError.of("CHECKPOINT_UNFINISHED",
        s"$checkpoint is being made by a command, or one has died.")

  def ended(run: UUID): Unit = { checked.remove(run); () }
}
