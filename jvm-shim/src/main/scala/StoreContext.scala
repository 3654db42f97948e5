package org.apache.spark.sql.millpond

import java.io.File

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import com.fasterxml.jackson.databind.util.RawValue
import org.apache.hadoop.conf.Configuration
import org.rocksdb.{CompressionType, LRUCache, NativeLibraryLoader, RocksDB}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{
  CoordinatorAccess, StateStoreConf, StateStoreId
}

/** What is constant for one provider: who it is, its options, and its way to the agent. */
final class StoreContext(val storeId: StateStoreId, val conf: StateStoreConf,
    val hadoopConf: Configuration) {
  val options: Options = Options.resolve(conf.sqlConfs)
  /** Spark checkpoint format 2. A reader's session need not be set to it: to be asked for a version by its id says as much. */
  @volatile var usesCommitIds: Boolean = conf.enableStateStoreCheckpointIds
  val runId: String = CoordinatorAccess.runId(hadoopConf)
  val label: String = s"${storeId.operatorId}/${storeId.partitionId}/${storeId.storeName}"
  val localDir: File = {
    LocalDirs.configure(options.string("localDir"))
    LocalDirs.forStore(s"${storeId.operatorId}-${storeId.partitionId}-${storeId.storeName}")
  }
  private val settings = options.agentSettings
  HadoopFiles.remember(storeId.checkpointRootLocation, hadoopConf)

  private def partitionsHint: Option[Int] =
    Seq("spark.sql.streaming.internal.stateStore.partitions",
      "spark.sql.shuffle.partitions").iterator.map(hadoopConf.get).find(_ != null).map(_.toInt)

  /** A call to the agent in the name of this store. `generation` numbers the local copies: each has a folder of its own. */
  def call(method: String, generation: Int)(fill: ObjectNode => Any): JsonNode = {
    folderOf(
      generation).mkdir() // not if the store is closed and its folder gone: the last call must not bring it back
    val request = Json.obj()
    request.putRawValue("store", described(generation))
    fill(request)
    val answer = Agent.call(method, request, settings)
    storageUse.add(answer)
    answer
  }

  val storageUse = new StorageUse

  // Serialised once per generation: a commit would spend more on these forty values than on all that differs between calls.
  private var lastDescribed: (Int, Boolean, RawValue) = null

  private def described(generation: Int): RawValue = synchronized {
    if (lastDescribed == null || lastDescribed._1 != generation || lastDescribed._2 != usesCommitIds)
      lastDescribed = (generation, usesCommitIds, new RawValue(Json.text(describe(generation))))
    lastDescribed._3
  }

  private def describe(generation: Int): ObjectNode = {
    val store = Json.obj()
    store.put("root", storeId.checkpointRootLocation).put("operator", storeId.operatorId).put(
      "partition", storeId.partitionId)
      .put("name", storeId.storeName).put("run_id", runId).put("local_dir",
        folderOf(generation).getPath)
      .put("checkpoint_format", if (usesCommitIds) 2 else 1)
      .put("retain_versions", conf.minVersionsToRetain).put("min_deltas_for_snapshot",
        conf.minDeltasForSnapshot)
    partitionsHint.foreach(store.put("partitions_hint", _))
    store.set[JsonNode]("options", options.json)
    S3Access.of(hadoopConf).foreach(store.set[JsonNode]("hadoop", _))
    store
  }

  private def folderOf(generation: Int) = new File(localDir, s"g$generation")

  def generationDir(generation: Int): File = {
    val dir = folderOf(generation)
    if (!dir.isDirectory && !dir.mkdirs())
      throw MillpondError.of("LOCAL_DISK_FULL", s"the folder $dir for local state cannot be made.")
    dir
  }
}

/** What all stores of this JVM share. The first store's options decide. */
object Shared extends Logging {
  @volatile private var theBudget: MemoryBudget = null
  @volatile private var theDisk: DiskConfig = null
  private val DefaultShare = 0.3

  def budget(options: Options): MemoryBudget = synchronized {
    val limit =
      options.long("memory.budget").getOrElse((Runtime.getRuntime.maxMemory * DefaultShare).toLong)
    // another session of this JVM may ask for another budget; what is in use keeps counting against the one it was taken from
    if (theBudget == null || theBudget.limitBytes != limit) theBudget = new MemoryBudget(limit)
    theBudget
  }

  def disk(options: Options): DiskConfig = synchronized {
    if (theDisk == null) {
      loadRocksDb()
      // lives as long as the JVM: every disk tier refers to it
      theDisk =
        DiskConfig(new LRUCache(options.long("rocksdb.blockCache").get), compression(options))
    }
    theDisk.copy(compression = compression(options))
  }

  /** RocksDB unpacks its native library, 15 MB, into the JVM's temporary folder, and leaves it there for good if the JVM is killed. In this JVM's own
    * local folder it goes with the folder. Where no code may be run from there (a mount with noexec), RocksDB does as it always does. */
  private def loadRocksDb(): Unit = {
    try NativeLibraryLoader.getInstance.loadLibrary(LocalDirs.root.getPath)
    catch {
      case e @ (_: UnsatisfiedLinkError | _: java.io.IOException) =>
        logInfo(s"RocksDB's library is not loaded from ${LocalDirs.root}: ${e.getMessage}")
    }
    RocksDB.loadLibrary()
  }

  private def compression(options: Options): CompressionType =
    options.string("snapshot.compression").get match {
      case "lz4" => CompressionType.LZ4_COMPRESSION
      case "zstd" => CompressionType.ZSTD_COMPRESSION
      case "none" => CompressionType.NO_COMPRESSION
    }
}
