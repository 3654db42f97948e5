package org.apache.spark.sql.millpond.driver

import java.util.UUID

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.agent.{Agent, HadoopFiles, StorageAccess}
import org.apache.spark.sql.millpond.base.{
  Json, LocalDirs, MillpondException, Names, Options, Shell
}

/** Says when Spark ignores `spark.sql.shuffle.partitions`: a query goes on with the number of
  * state partitions in its offset log. This logs a warning, and writes `millpond/asked.json` for
  * `millpond checkpoint show`. With `rescale.onRestart` the agent rescales instead. Runs on the
  * driver, before the query reads its logs. */
private object AskedPartitions extends Logging {
  private val Key = SQLConf.SHUFFLE_PARTITIONS.key

  def started(query: StreamExecution, run: UUID): Unit =
    try compare(query, run)
    catch {
      case NonFatal(e) => logWarning(
          s"$Key cannot be compared with the number of state partitions in " +
            s"${query.resolvedCheckpointRoot}: ${e.getMessage}")
    }

  private def compare(query: StreamExecution, run: UUID): Unit = {
    val conf = query.sparkSession.sessionState.conf
    val root = new Path(query.resolvedCheckpointRoot)
    for {
      (batch, offsets) <- query.offsetLog.getLatest()
      pinned <- offsets.metadataOpt.map(_.conf)
      recorded <- pinned.get(Key).flatMap(_.trim.toIntOption) // Spark 3.5 wrote what the user did
      if pinned.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key).contains(Names.ProviderClass)
    } {
      // a default asks for nothing
      val asked = if (conf.contains(Key)) conf.getConf(SQLConf.SHUFFLE_PARTITIONS) else recorded
      val hadoopConf = query.sparkSession.sessionState.newHadoopConf()
      val options = Options.resolve(conf.getAllConfs)
      // a batch that began and did not commit may belong to a killed rescale
      val refused =
        if (options.boolean("rescale.onRestart") && (asked != recorded ||
            !query.commitLog.getLatestBatchId().contains(batch)))
          rescale(query, root, run, asked, options, hadoopConf)
        else None
      if (refused.isDefined || (asked != recorded && !options.boolean("rescale.onRestart")))
        say(root, asked, recorded, refused)
      note(hadoopConf, root, run, asked, recorded, refused)
    }
  }

  /** None if the state has `asked` partitions now; else the reason. */
  private def rescale(query: StreamExecution, root: Path, run: UUID, asked: Int,
      options: Options, hadoopConf: Configuration): Option[String] =
    try {
      HadoopFiles.remember(root.toString, hadoopConf)
      LocalDirs.configure(options.string("localDir"))
      val request = Json.obj().put("checkpoint", root.toString).put("run_id", run.toString)
        .put("partitions", asked)
      request.set[ObjectNode]("options", options.json)
      request.put("file_sink", Option(Sinks.of(query).get("path")).fold("none")(_.asText))
      StorageAccess.hand(request, hadoopConf)
      val answer = Agent.call("rescale", request, options.agentSettings)
      if (answer.has("from"))
        logInfo(
          s"the state in $root was rescaled from ${answer.get("from").asInt} to $asked " +
            s"partitions (${answer.get("way").asText}) in ${answer.get("seconds").asDouble} s")
      None
    } catch { case e: MillpondException => Some(e.getMessage) }

  private def say(root: Path, asked: Int, recorded: Int, refused: Option[String]): Unit =
    refused match {
      case Some(why) if asked == recorded =>
        logError(
          s"the rescale of the state in $root to $asked partitions is not finished: the query " +
            s"goes on if it can. $why")
      case Some(why) =>
        logError(
          s"$Key is $asked, and the state in $root could not be rescaled: the query goes on " +
            s"with $recorded partitions if it can. $why")
      case None =>
        logWarning(
          s"$Key is $asked, but the state in $root has $recorded partitions, and Spark goes on " +
            s"with $recorded. To change it, stop the query and run: " + rescaleCommand(root, asked))
    }

  /** The line to paste. */
  def rescaleCommand(root: Path, partitions: Int): String =
    s"millpond rescale ${Shell.word(root.toString)} --partitions $partitions"

  private def note(hadoopConf: Configuration, root: Path, run: UUID, asked: Int, recorded: Int,
      refused: Option[String]): Unit = {
    val fs = root.getFileSystem(hadoopConf)
    val file = CheckpointPaths.asked(root)
    // the first store makes the folder
    if ((asked != recorded || refused.isDefined || fs.exists(file)) && fs.exists(file.getParent)) {
      val text = Json.obj().put("partitions", asked).put("run_id", run.toString)
        .put("updated_ms", System.currentTimeMillis).put("refused", refused.getOrElse(""))
      LogFiles.overwrite(file, Json.bytes(text), hadoopConf)
    }
  }
}
