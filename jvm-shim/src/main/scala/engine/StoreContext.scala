package org.apache.spark.sql.millpond.engine

import java.io.File

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import com.fasterxml.jackson.databind.util.RawValue
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state.{
  CoordinatorAccess, StateStoreConf, StateStoreId
}
import org.apache.spark.sql.millpond.agent.{Agent, HadoopFiles, StorageAccess}
import org.apache.spark.sql.millpond.base.{Json, LocalDirs, MillpondException, Options}
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.observe.Counters

/** The constants of one provider: its name, its options, its way to the agent. */
final class StoreContext(val storeId: StateStoreId, val conf: StateStoreConf,
    val hadoopConf: Configuration) {
  val options: Options = Options.resolve(conf.sqlConfs)
  /** Whether the state has Spark checkpoint format 2. A reader's session may be set to the other
    * one: whether Spark names a version by an id decides. */
  @volatile var usesCommitIds: Boolean = conf.enableStateStoreCheckpointIds
  val runId: String = CoordinatorAccess.runId(hadoopConf)
  val label: String = s"${storeId.operatorId}/${storeId.partitionId}/${storeId.storeName}"
  val localDir: File = {
    LocalDirs.configure(options.string("localDir"))
    LocalDirs.forStore(s"${storeId.operatorId}-${storeId.partitionId}-${storeId.storeName}")
  }
  private[millpond] val events = new StoreEvents(runId, storeId)
  private val settings = options.agentSettings
  HadoopFiles.remember(storeId.checkpointRootLocation, hadoopConf)

  private def partitionsHint: Option[Int] =
    Seq("spark.sql.streaming.internal.stateStore.partitions",
      "spark.sql.shuffle.partitions").iterator.map(hadoopConf.getTrimmed).find(_ != null)
      .map(_.toInt)

  /** A call to the agent in the name of this store. `generation` numbers the local copies: each has
    * a folder of its own. What did the rest, and answers with a `problem`, has failed too. */
  def call(method: String, generation: Int)(fill: ObjectNode => Any): JsonNode = {
    // fails if the store is closed and its folder deleted: the last call must not bring it back
    folderOf(generation).mkdir()
    val start = System.nanoTime
    try {
      val answer = ask(method, generation)(fill)
      storageUse.add(answer)
      Agent.throwIfThere(method, answer.get("problem"))
      answer
    } catch {
      case e: MillpondException if e.kind.startsWith("STORAGE_") =>
        storageFailed(method, start, e)
        events.publish()
        throw e
    }
  }

  private def ask(method: String, generation: Int)(fill: ObjectNode => Any): JsonNode = {
    val request = Json.obj()
    request.putRawValue("store", described(generation))
    fill(request)
    Agent.call(method, request, settings)
  }

  /** A call whose failure is nobody's: it makes no folder, and no event. */
  private[engine] def tell(method: String, generation: Int)(fill: ObjectNode => Any): JsonNode = {
    val answer = ask(method, generation)(fill)
    storageUse.add(answer)
    answer
  }

  /** Whether the storage takes a changelog before it is complete, as far as is known. */
  @volatile private[engine] var sendsAhead = true

  /** The storage refused something for good. Somebody publishes the event. */
  private[engine] def storageFailed(method: String, startNs: Long, e: MillpondException): Unit = {
    Counters.storageErrors.increment()
    events.noteError("storage_error", e, "method" -> method,
      "duration_ms" -> (System.nanoTime - startNs) / 1000000L)
  }

  val storageUse = new StorageUse

  // Serialised once per generation: these forty values would cost a commit more
  // than all the others.
  private var lastDescribed: (Int, Boolean, RawValue) = null

  private def described(generation: Int): RawValue = synchronized {
    if (lastDescribed == null || lastDescribed._1 != generation ||
      lastDescribed._2 != usesCommitIds)
      lastDescribed = (generation, usesCommitIds, new RawValue(Json.text(describe(generation))))
    lastDescribed._3
  }

  private def describe(generation: Int): ObjectNode = {
    val store = Json.obj()
    store.put("root", storeId.checkpointRootLocation).put("operator", storeId.operatorId)
      .put("partition", storeId.partitionId)
      .put("name", storeId.storeName).put("run_id", runId)
      .put("local_dir", folderOf(generation).getPath)
      .put("checkpoint_format", if (usesCommitIds) 2 else 1)
      .put("retain_versions", conf.minVersionsToRetain)
      .put("min_deltas_for_snapshot", conf.minDeltasForSnapshot)
      .put("maintenance_interval_ms", conf.maintenanceInterval)
    partitionsHint.foreach(store.put("partitions_hint", _))
    store.set[JsonNode]("options", options.json)
    StorageAccess.hand(store, hadoopConf)
    store
  }

  /** Where storage is not local, delete these local copies of changelogs: nobody else would. */
  private[engine] def dropCopies(changelogs: Seq[PendingChangelog]): Unit =
    changelogs.map(c => new File(c.path)).filter(_.toPath.startsWith(localDir.toPath)).foreach(
      _.delete())

  private def folderOf(generation: Int) = new File(localDir, s"g$generation")

  /** Delete the databases of a generation, which is over. */
  private[engine] def dropDatabases(generation: Int): Unit =
    Option(folderOf(generation).listFiles).foreach(_.filter(_.getName.startsWith("db-")).foreach(
        LocalDirs.delete))

  /** Delete the folders of the generations up to one. A call for an older one may have made its
    * folder anew. */
  private[engine] def dropGenerations(last: Int): Unit =
    Option(localDir.listFiles).foreach(_.filter { folder =>
      folder.getName.startsWith("g") && folder.getName.drop(1).toIntOption.exists(_ <= last)
    }.foreach(LocalDirs.delete))

  def generationDir(generation: Int): File = {
    val dir = folderOf(generation)
    if (!dir.isDirectory) LocalDirs.make(dir)
    dir
  }
}
