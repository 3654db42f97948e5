package org.apache.spark.sql.millpond.disk

import java.io.File
import java.util.concurrent.atomic.AtomicReference

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ArrayNode
import org.rocksdb.{
  BlockBasedTableConfig, BloomFilter, ChecksumType, CompactRangeOptions, CompactionOptionsUniversal,
  CompactionStyle, CompressionType, FlushOptions, IndexType, InfoLogLevel,
  IngestExternalFileOptions, LRUCache, Options, ReadOptions, RocksDB, RocksDBException,
  RocksIterator, Status, WriteOptions
}

import org.apache.spark.sql.millpond.base.{
  Json, MillpondError, MillpondException, RowLimit, Seams, StoreLock
}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** The disk tier of one store: a local RocksDB that sees rows only in bulk, as sorted files, at
  * snapshots. Point reads and scans may come from any thread; `close` must not run beside them.
  * Owns its native objects.
  *
  * @param readOnly for a tier that is only read: nothing in its folder changes */
final class DiskTier(val dir: File, config: DiskConfig, readOnly: Boolean = false) {
  private val bloom = new BloomFilter(DiskTier.BloomBits.toDouble)
  private val merging = new CompactionOptionsUniversal()
    .setMaxSizeAmplificationPercent(DiskTier.NewerPercent)
    .setSizeRatio(DiskTier.LikePercent)
    .setAllowTrivialMove(true)
  private val options = new Options()
    .setCreateIfMissing(true)
    // in pieces, which the block cache holds like all else: whole, and outside of it, they
    // grow with the state until the container's limit kills the process
    .setTableFormatConfig(format.setIndexType(IndexType.kTwoLevelIndexSearch)
        .setPartitionFilters(true)
        .setPinTopLevelIndexAndFilter(true))
    // the key filter answers for keys that no file has
    .setOptimizeFiltersForHits(true)
    .setCompressionType(config.compression)
    .setMaxBackgroundJobs(2)
    .setDisableAutoCompactions(Seams.director != null) // no test could order them
    // a file system in memory would fill the space that RocksDB reserves
    .setAllowFAllocate(Seams.director == null)
    .setWriteBufferSize(1L << 20)
    // files of like size are merged. A level would be rewritten for each few small files: it falls
    // behind, so it grows, and so does the price of rewriting it
    .setCompactionStyle(CompactionStyle.UNIVERSAL)
    .setCompactionOptionsUniversal(merging)
    // the next snapshot must upload what a compaction rewrites; reads hardly notice more files,
    // since memory and bloom filters answer most of them
    .setLevel0FileNumCompactionTrigger(DiskTier.FlushedFiles)
    .setTargetFileSizeBase(config.fileBytes)
    // a merge reads so much of each of its files at once. RocksDB's 2 MiB count in a container
    .setCompactionReadaheadSize(DiskTier.ReadAheadBytes)
    // each snapshot has it whole, and it tells of all files that ever came and went
    .setMaxManifestFileSize(DiskTier.ManifestBytes)
    .setStatsDumpPeriodSec(0)
    .setInfoLogLevel(InfoLogLevel.ERROR_LEVEL)
    .setKeepLogFileNum(1)
  // a look into a file costs half as much if its index and filter are one block each
  private val wholeOptions = new Options(options).setTableFormatConfig(format)
  private val reading = new ReadOptions()
  private val readingAhead = new ReadOptions().setFillCache(false).setReadaheadSize(2L << 20)
  private val compaction = new CompactRangeOptions()
  private val rocks =
    try new LocalRocks(dir, options, readOnly)
    catch { case e: MillpondException => freeOptions(); throw e }
  private val points = new PointReads(dir, rocks, config.maps)
  private[disk] val filter = new TierFilter
  /** What helps `get`. */
  val lookup = new TierLookup(points, filter,
    budget => filter.begin(iterator(readAhead = true), estimatedKeys, budget))
  private val compacting = new StoreLock
  @volatile private var closing = false
  @volatile private var isOnDisk = true // all that was deleted
  private val idle = new AtomicReference[RocksIterator]
  private var value = new Array[Byte](DiskTier.LeastKeptBytes)
  // after a rescale: databases of other partitions that still have rows of this tier; and those
  // that had, which an iterator may still read
  private var sources = Array.empty[TierSource]
  private var emptied = Array.empty[TierSource]

  def hasSources: Boolean = sources.nonEmpty

  /** The rows of these sources belong to this tier too. Call it before another
    * thread knows the tier. */
  def addSources(more: Seq[TierSource]): Unit = sources = more.toArray

  /** Copy the rows of the sources into sorted files in the folder, not yet part of the tier. For
    * the one thread that flushes. */
  def copySources(workDir: File): Seq[File] = {
    val copies = mutable.ArrayBuffer.empty[File]
    def file = new File(workDir, s"source-${java.util.UUID.randomUUID}.sst")
    var done = false
    try {
      sources.foreach { source =>
        DiskTier.checkFolder(source.tier.dir)
        source.copyTo(this, file)(copies.addOne(_): Unit)
      }
      done = true
    } finally if (!done) copies.foreach(_.delete())
    copies.toSeq
  }

  /** The copies take the place of the sources. Callers hold the store's lock. */
  def replaceSources(copies: Seq[File]): Unit = {
    copies.foreach(ingest)
    emptied = emptied ++ sources
    sources = Array.empty
  }

  /** Close sources that no iterator reads. */
  def closeEmptied(): Unit = { emptied.foreach(_.close()); emptied = Array.empty }

  /** Whether the last `get` read a block of a sorted file, as far as it is known. */
  def hasReadDisk: Boolean = hasRead
  private var hasRead = false

  /** Length of the value of a physical key, or -1; the bytes are in `lastValue` until the next
    * call. Callers hold the store's lock. */
  def get(key: Array[Byte], length: Int): Int = {
    val source = if (sources.length == 0) null else sourceOf(key, length)
    if (source == null) getFast(key, length)
    else {
      val n = source.tier.getOwn(key, length)
      value = source.tier.value
      hasRead = true
      n
    }
  }

  private def sourceOf(key: Array[Byte], length: Int): TierSource = {
    var i = 0
    while (i < sources.length) { if (sources(i).owns(key, length)) return sources(i); i += 1 }
    null
  }

  private def getFast(key: Array[Byte], length: Int): Int = {
    val n = points.find(key, length)
    if (n == PointReads.Unknown) getOwn(key, length)
    else {
      if (n > value.length || wastes(n)) value = new Array[Byte](roomFor(n))
      if (n > 0) Platform.copyMemory(null, points.valueAt, value, Bytes.ArrayOffset, n.toLong)
      hasRead = points.hasRead
      n
    }
  }

  /** Whether the room for a large value has a small one: it must not stay with the store for good.
    * @param bytes negative: there is no value */
  private def wastes(bytes: Int): Boolean =
    bytes >= 0 && RowLimit.isExcess(value.length, bytes)

  private def roomFor(bytes: Int): Int =
    math.max(DiskTier.LeastKeptBytes, RowLimit.bufferFor(bytes))

  private def getOwn(key: Array[Byte], length: Int): Int = {
    hasRead = true
    // a closure would box the length
    val db = rocks.open()
    try {
      var n = db.get(reading, key, 0, length, value, 0, value.length)
      if (n > value.length) {
        value = new Array[Byte](roomFor(n))
        n = db.get(reading, key, 0, length, value, 0, value.length)
      } else if (wastes(n))
        value = java.util.Arrays.copyOf(value, roomFor(n))
      if (n == RocksDB.NOT_FOUND) -1 else n
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"reading the local RocksDB $dir failed", e)
    } finally rocks.release()
  }

  /** The value of a physical key, or null. For the one thread that flushes, once
    * there are no sources. */
  def read(key: Array[Byte]): Array[Byte] =
    try rocks.use(_.get(reading, key))
    catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"reading the local RocksDB $dir failed", e)
    }

  def lastValue: Array[Byte] = value

  /** An iterator over the state of now; the caller closes it before this tier is closed. The next
    * short scan uses the same iterator again: a new one costs as much as a few rows. */
  def iterator(readAhead: Boolean): DiskScan = {
    val own = ownIterator(readAhead)
    if (sources.length == 0) own else new MergedScan(own, sources.map(_.scan(readAhead)))
  }

  private def ownIterator(readAhead: Boolean): DiskScan =
    if (readAhead)
      points.scan() match {
        case null => new RocksScan(begun(readingAhead), ended)
        case scan => scan
      }
    // RocksDB does not refresh such iterators
    else if (readOnly) new RocksScan(begun(reading), ended)
    else {
      val it = idle.getAndSet(null)
      if (it == null) new RocksScan(begun(reading), putBack)
      else
        try { it.refresh(); new RocksScan(it, putBack) }
        catch {
          case e: RocksDBException =>
            ended(it)
            throw DiskTier.failure(s"scanning the local RocksDB $dir failed", e)
        }
    }

  /** An iterator, which uses the database until it has ended. */
  private def begun(read: ReadOptions): RocksIterator = {
    val db = rocks.open()
    var made: RocksIterator = null
    try { made = db.newIterator(read); made }
    finally if (made == null) rocks.release()
  }

  private def ended(it: RocksIterator): Unit = { it.close(); rocks.release() }
  private def putBack(it: RocksIterator): Unit = if (!idle.compareAndSet(null, it)) ended(it)
  /** An idle iterator would keep files that compaction replaced. */
  private def dropIdle(): Unit = { val it = idle.getAndSet(null); if (it != null) ended(it) }

  /** A writer of one sorted file with this tier's table format. */
  def sstWriter(file: File): SstWriter = new SstWriter(options, file, filter)

  /** A writer of one sorted file that a flush makes.
    * @param rows at most so many, with so many bytes of keys, and of keys and values */
  def sstWriter(file: File, rows: Long, keyBytes: Long, bytes: Long): SstWriter =
    new SstWriter(if (DiskTier.indexBytes(rows, keyBytes, bytes) <= config.mostWhole()) wholeOptions
      else options, file, filter)

  /** Make a finished sorted file part of the tier, at once and as a whole. */
  def ingest(file: File): Unit = {
    dropIdle()
    val prepared = points.prepare(file)
    var done = false
    val ingesting = new IngestExternalFileOptions(true, true, true, true).setWriteGlobalSeqno(false)
    try {
      Seams.at("disk.ingest")
      rocks.use(_.ingestExternalFile(java.util.Collections.singletonList(file.getPath), ingesting))
      Seams.at("disk.ingested")
      done = true
      filter.judge(estimatedKeys)
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"a sorted file cannot be added to $dir", e)
    } finally {
      ingesting.close()
      if (done) points.joined(prepared) else points.failed(prepared)
    }
  }

  /** Delete all rows in the half-open ranges of keys. A file that lies wholly in one
    * range goes at once. */
  def deleteRanges(
      ranges: Seq[(Array[Byte], Array[Byte])]): Unit = if (ranges.nonEmpty) writing { (db, write) =>
    // one call for all ranges: each call writes RocksDB's manifest
    db.deleteFilesInRanges(db.getDefaultColumnFamily,
      ranges.flatMap { case (from, until) => Seq(from, until) }.asJava, false)
    ranges.foreach { case (from, until) => db.deleteRange(write, from, until) }
  }

  /** Delete the rows with these keys, which may come from a scan of this tier. */
  def deleteRows(keys: Iterator[Array[Byte]]): Unit =
    writing((db, write) => keys.foreach(db.delete(write, _)))

  private def writing(work: (RocksDB, WriteOptions) => Unit): Unit = rocks.use { db =>
    dropIdle()
    points.changed()
    val write = new WriteOptions().setDisableWAL(true)
    val flush = new FlushOptions().setWaitForFlush(true)
    try {
      Seams.at("disk.delete")
      isOnDisk = false
      work(db, write)
      Seams.at("disk.deleted")
      db.flush(flush)
      isOnDisk = true
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"deleting from the local RocksDB $dir failed", e)
    } finally { write.close(); flush.close() }
  }

  /** Rewrite the files without deleted rows. Takes long, and may run beside everything else:
    * `close` breaks it off. */
  def compact(): Unit = {
    Seams.at("disk.compact")
    compacting.during {
      if (closing) throw MillpondError.storeClosed(dir.getPath)
      try rocks.use(db => db.compactRange(db.getDefaultColumnFamily, null, null, compaction))
      catch {
        case e: RocksDBException =>
          if (closing) throw MillpondError.storeClosed(dir.getPath)
          throw DiskTier.failure(s"compacting the local RocksDB $dir failed", e)
      }
    }
  }

  def estimatedKeys: Long =
    rocks.estimatedKeys + sources.iterator.map(_.tier.estimatedKeys).sum

  /** The space of sorted files on the local disk, with those that RocksDB has replaced and that are
    * still mapped. Callers hold the store's monitor. */
  def localBytes: Long = rocks.bytes + points.replacedBytes +
    sources.iterator.map(_.tier.localBytes).sum

  /** Whether nothing was ever ingested. */
  def isEmpty: Boolean = rocks.files.isEmpty

  /** A pass of maintenance: a tier that nobody used since the one before closes its RocksDB, until
    * somebody needs it. Runs beside everything else. */
  def rest(): Unit = {
    Seams.at("tier.rest")
    // not beside `close`, after which no iterator may be closed
    compacting.ifFree(if (!closing && isOnDisk && !hasSources) {
      dropIdle(); points.rest(); rocks.rest()
    }): Unit
  }

  /** Make a RocksDB checkpoint in `target`, which must not exist: the live files, and the manifest
    * that names them. Returns its files, as `publish_snapshot` wants them. */
  def snapshotTo(target: File): ArrayNode = rocks.use { db =>
    val files = Json.obj().putArray("files")
    LiveFiles.copy(db, dir, target).sortBy(_.fileName).foreach { f =>
      files.addObject().put("name", f.fileName.stripPrefix("/")).put("size_bytes", f.size)
        .put("smallest_hex", java.util.HexFormat.of().formatHex(f.smallestKey))
        .put("largest_hex", java.util.HexFormat.of().formatHex(f.largestKey))
        .put("entries", f.numEntries).put("deletions", f.numDeletions).put("level", f.level)
    }
    files
  }

  private def format = new BlockBasedTableConfig()
    .setFormatVersion(5)
    .setChecksumType(ChecksumType.kCRC32c) // the JVM computes it as fast as RocksDB
    .setBlockCache(config.blockCache)
    .setFilterPolicy(bloom)
    .setBlockSize(DiskTier.BlockBytes)
    .setCacheIndexAndFilterBlocks(true)
    .setCacheIndexAndFilterBlocksWithHighPriority(true)

  private def freeOptions(): Unit = {
    reading.close()
    readingAhead.close()
    compaction.close()
    merging.close()
    wholeOptions.close()
    options.close()
    bloom.close()
  }

  def close(): Unit = {
    closing = true
    compaction.setCanceled(true)
    compacting.during {
      lookup.close()
      closeEmptied()
      sources.foreach(_.close())
      sources = Array.empty
      dropIdle()
      rocks.close()
      freeOptions()
    }
  }
}

/** The configuration that all disk tiers of an executor share.
  * @param mostWhole up to how many bytes the index and the filter of a flushed file are one block
  * each
  * @param maps whether sorted files may be mapped into memory
  * @param fileBytes how large a sorted file of a compaction becomes */
final case class DiskConfig(blockCache: LRUCache, compression: CompressionType,
    mostWhole: () => Long, maps: Boolean, fileBytes: Long = 32L << 20)

object DiskTier {
  /** So many files of flushes, or of compactions of some of them, wait for a compaction. */
  val FlushedFiles = 8
  /** When the newer sorted runs take as much of the oldest one, in percent, all are merged. */
  private val NewerPercent = 50
  /** By how much a run may be larger than all newer ones together, and still be merged with them,
    * in percent. */
  private val LikePercent = 20
  private val ReadAheadBytes = 512L << 10
  private val BlockBytes = 4L << 10
  private val BloomBits = 10
  /** A larger manifest is written anew, with what it says of the live files alone. */
  private val ManifestBytes = 1L << 20
  private val LeastKeptBytes = 1024 // of the room for a value

  /** About how much the index and the filter of a sorted file take. */
  private[disk] def indexBytes(rows: Long, keyBytes: Long, bytes: Long): Long =
    rows * BloomBits / 8 + (bytes / BlockBytes + 1) * (keyBytes / math.max(1L, rows) + 16)

  /** Fails with `MILLPOND_LOCAL_FILES_LOST` if the folder of a disk tier was emptied. RocksDB goes
    * on with its open files and notices nothing until it opens another one. */
  def checkFolder(dir: File): Unit =
    if (!new File(dir, "CURRENT").isFile)
      throw MillpondError.of("LOCAL_FILES_LOST",
        s"the files of the local RocksDB $dir were deleted.")

  def failure(what: String, e: Exception): MillpondException = {
    val text = String.valueOf(e.getMessage)
    // the text of a corruption error need not name it
    val corrupt = text.contains("Corruption:") || (e match {
      case e: RocksDBException => e.getStatus != null &&
        e.getStatus.getCode == Status.Code.Corruption
      case _ => false
    })
    val kind =
      if (MillpondError.isOutOfSpace(e)) "LOCAL_DISK_FULL"
      else if (text.contains("No such file or directory")) "LOCAL_FILES_LOST"
      else if (corrupt) "SST_DAMAGED"
      else "INTERNAL"
    MillpondError.ofFile(kind, s"$what: $text", e)
  }
}
