package org.apache.spark.sql.millpond.engine

import org.rocksdb.{CompressionType, LRUCache, NativeLibraryLoader, RocksDB}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{LocalDirs, Options}
import org.apache.spark.sql.millpond.disk.DiskConfig
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.observe.Observed

/** What all stores of this JVM share. The first store's options decide. */
private[engine] object Shared extends Logging {
  @volatile private var theBudget: MemoryBudget = null
  @volatile private var theDisk: DiskConfig = null

  def budget(options: Options): MemoryBudget = {
    val limit = options.long("memory.budget").getOrElse(DefaultBudget.bytes(options))
    budgetOf(limit)
  }

  private def budgetOf(limit: Long): MemoryBudget = synchronized {
    // another session of this JVM may ask for another budget; memory counts against the budget
    // that it was taken from
    if (theBudget == null || theBudget.limitBytes != limit) {
      val next = new MemoryBudget(limit)
      theBudget = next
      Observed.memory(() => (next.usedBytes, next.limitBytes))
    }
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
