package org.apache.spark.sql.millpond.engine

import org.rocksdb.{CompressionType, LRUCache, NativeLibraryLoader, RocksDB}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Event, Events, LocalDirs, Options}
import org.apache.spark.sql.millpond.disk.{DiskConfig, DiskTier}
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.observe.Observed

/** What all stores of this JVM share. */
private[engine] object Shared extends Logging {
  @volatile private var theBudget: MemoryBudget = null
  @volatile private var theDisk: DiskConfig = null
  private val MostShards = 64L // as many as RocksDB would make
  private val LeastShardBytes = 2L << 20

  /** The one budget of this JVM. Sessions may differ in what they ask for: the store that was
    * opened last decides the limit of all. */
  def budget(options: Options): MemoryBudget = {
    val limit = DefaultBudget.bytes(options)
    val budget = budgetOf(limit)
    val before = budget.limitTo(limit)
    if (before != limit)
      Events.log(Event.of("memory_budget_changed", "bytes" -> limit,
        "reason" -> s"it was $before bytes, by the options of another store"))
    budget
  }

  private def budgetOf(limit: Long): MemoryBudget = synchronized {
    if (theBudget == null) {
      val made = new MemoryBudget(limit)
      theBudget = made
      Observed.memory(() => (made.usedBytes, made.limitBytes))
    }
    theBudget
  }

  /** The first store's options decide the size of the block cache. */
  def disk(options: Options): DiskConfig = synchronized {
    if (theDisk == null) {
      loadRocksDb()
      // lives as long as the JVM: every disk tier refers to it
      theDisk =
        diskConfig(options.long("rocksdb.blockCache").get, compression(options))
    }
    theDisk.copy(compression = compression(options))
  }

  private def diskConfig(cacheBytes: Long, compression: CompressionType): DiskConfig =
    DiskConfig(blockCache(cacheBytes), compression, () => mostWhole(cacheBytes), maps)

  /** YARN counts the pages of mapped files as memory of a container, and kills it, though the
    * system could take them back. */
  private def maps: Boolean = !DefaultBudget.isYarn

  /** Half of it is for indexes and filters first. RocksDB's Java binding keeps nothing for them
    * unless it is told: one row of a block of data drives out what thousands of reads need. Its
    * shards are so large that some whole filters find room in each. */
  private def blockCache(bytes: Long): LRUCache = {
    val shards = math.min(MostShards, math.max(1L, bytes / LeastShardBytes))
    new LRUCache(bytes, 63 - java.lang.Long.numberOfLeadingZeros(shards), false, 0.5)
  }

  /** The indexes and filters of flushed files that are one block each fill a quarter of the block
    * cache at most, and a quarter of a shard: what finds no room is read again, whole, by each look
    * into the file. */
  private def mostWhole(cacheBytes: Long): Long = {
    val files = (DiskTier.FlushedFiles + 1L) * math.max(1, theBudget.storeCount)
    math.min(cacheBytes / 4 / files, LeastShardBytes / 4)
  }

  /** RocksDB unpacks its native library, 15 MB, into the JVM's temporary folder. A JVM that
    * is killed leaves it there. Here RocksDB unpacks it into this JVM's local folder, which
    * an agent deletes later. If code cannot run from there (a mount with noexec), RocksDB
    * uses its own folder. */
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
