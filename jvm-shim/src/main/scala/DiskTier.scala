package org.apache.spark.sql.millpond

import java.io.File
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicReference

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ArrayNode
import org.rocksdb.{
  BlockBasedTableConfig, BloomFilter, Checkpoint, CompactRangeOptions, CompressionType, EnvOptions,
  FlushOptions, InfoLogLevel, IngestExternalFileOptions, LRUCache, Options, ReadOptions, RocksDB,
  RocksDBException, RocksIterator, SstFileWriter, Status, WriteOptions
}

/** The disk tier of one store: a local RocksDB that sees rows only in bulk, as sorted files, at snapshots. Point reads and scans may come
  * from any thread; `close` must not run beside them. Owns its native objects.
  *
  * @param readOnly for one that is only read, and soon closed: nothing in its folder changes */
final class DiskTier(val dir: File, config: DiskConfig, readOnly: Boolean = false) {
  private val bloom = new BloomFilter(10)
  private val options = new Options()
    .setCreateIfMissing(true)
    .setTableFormatConfig(new BlockBasedTableConfig()
        .setFormatVersion(5)
        .setBlockCache(config.blockCache)
        .setFilterPolicy(bloom)
        .setBlockSize(8L << 10)
        .setCacheIndexAndFilterBlocks(false))
    .setCompressionType(config.compression)
    .setMaxBackgroundJobs(2)
    .setDisableAutoCompactions(Seams.director != null) // whose time nobody could order
    .setAllowFAllocate(
      Seams.director == null) // a file system in memory would fill all that is asked for ahead
    .setWriteBufferSize(1L << 20)
    .setLevelCompactionDynamicLevelBytes(true)
    // a compaction rewrites what the next snapshot must upload again; reads hardly notice more files, memory and bloom filters come first
    .setLevel0FileNumCompactionTrigger(8)
    .setTargetFileSizeBase(32L << 20)
    .setStatsDumpPeriodSec(0)
    .setInfoLogLevel(InfoLogLevel.ERROR_LEVEL)
    .setKeepLogFileNum(1)
  private val reading = new ReadOptions()
  private val readingAhead = new ReadOptions().setFillCache(false).setReadaheadSize(2L << 20)
  private val compaction = new CompactRangeOptions()
  private val db =
    try {
      Seams.at("disk.open");
      if (readOnly) RocksDB.openReadOnly(options, dir.getPath)
      else RocksDB.open(options, dir.getPath)
    } catch {
      case e: RocksDBException =>
        freeOptions(); throw DiskTier.failure(s"the local RocksDB $dir cannot be opened", e)
      case e: MillpondException => freeOptions(); throw e
    }
  private val compacting = new StoreLock
  @volatile private var closing = false
  private val idle = new AtomicReference[RocksIterator]
  private var value = new Array[Byte](1024)
  // after a rescale: what still lies in the databases of other partitions; and what did, and may still be read by an iterator
  private var sources = Array.empty[TierSource]
  private var emptied = Array.empty[TierSource]

  def hasSources: Boolean = sources.nonEmpty

  /** The rows of these belong to this tier too. Before anybody else knows the tier. */
  def addSources(more: Seq[TierSource]): Unit = sources = more.toArray

  /** Copy the rows of the sources into the folder, as sorted files that nobody knows yet. For the one thread that flushes. */
  def copySources(workDir: File, giveWay: () => Unit): Seq[File] = {
    val copies = Vector.newBuilder[File]
    var done = false
    try {
      sources.foreach { source =>
        DiskTier.checkFolder(source.tier.dir)
        val file = new File(workDir, s"source-${java.util.UUID.randomUUID}.sst")
        if (source.copyTo(this, file, giveWay)) copies += file
      }
      done = true
    } finally if (!done) copies.result().foreach(_.delete())
    copies.result()
  }

  /** The copies take the place of the sources. Callers hold the store's lock. */
  def replaceSources(copies: Seq[File]): Unit = {
    copies.foreach(ingest)
    emptied = emptied ++ sources
    sources = Array.empty
  }

  /** Close sources that nothing reads from any more. */
  def closeEmptied(): Unit = { emptied.foreach(_.close()); emptied = Array.empty }

  /** Length of the value of a physical key, or -1; the bytes are in `lastValue` until the next call. Callers hold the store's lock. */
  def get(key: Array[Byte], length: Int): Int = {
    val source = if (sources.length == 0) null else sourceOf(key, length)
    if (source == null) getOwn(key, length)
    else {
      val n = source.tier.getOwn(key, length)
      value = source.tier.value
      n
    }
  }

  private def sourceOf(key: Array[Byte], length: Int): TierSource = {
    var i = 0
    while (i < sources.length) { if (sources(i).owns(key, length)) return sources(i); i += 1 }
    null
  }

  private def getOwn(key: Array[Byte], length: Int): Int =
    try {
      var n = db.get(reading, key, 0, length, value, 0, value.length)
      if (n > value.length) {
        value = new Array[Byte](RowLimit.bufferFor(n))
        n = db.get(reading, key, 0, length, value, 0, value.length)
      }
      if (n == RocksDB.NOT_FOUND) -1 else n
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"reading the local RocksDB $dir failed", e)
    }

  /** The value of a physical key, or null; for the one thread that flushes, when there are no sources any more. */
  def read(key: Array[Byte]): Array[Byte] =
    try db.get(reading, key)
    catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"reading the local RocksDB $dir failed", e)
    }

  def lastValue: Array[Byte] = value

  /** An iterator over the state of now; the caller closes it before this tier is closed. One for short scans serves the next of them too,
    * since making one costs as much as reading a few rows. */
  def iterator(readAhead: Boolean): DiskScan = {
    val own = ownIterator(readAhead)
    if (sources.length == 0) own else new MergedScan(own, sources.map(_.scan(readAhead)))
  }

  private def ownIterator(readAhead: Boolean): RocksScan =
    if (readAhead) new RocksScan(db.newIterator(readingAhead), _.close())
    else if (readOnly)
      new RocksScan(db.newIterator(reading), _.close()) // RocksDB does not refresh such iterators
    else {
      val it = idle.getAndSet(null)
      if (it == null) new RocksScan(db.newIterator(reading), putBack)
      else
        try { it.refresh(); new RocksScan(it, putBack) }
        catch {
          case e: RocksDBException =>
            it.close(); throw DiskTier.failure(s"scanning the local RocksDB $dir failed", e)
        }
    }

  private def putBack(it: RocksIterator): Unit = if (!idle.compareAndSet(null, it)) it.close()
  /** An idle iterator keeps files that compaction replaced. */
  private def dropIdle(): Unit = { val it = idle.getAndSet(null); if (it != null) it.close() }

  /** A writer of one sorted file with this tier's table format. */
  def sstWriter(file: File): SstWriter = new SstWriter(options, file)

  /** Make a finished sorted file part of the tier, at once and as a whole. */
  def ingest(file: File): Unit = {
    dropIdle()
    val ingesting = new IngestExternalFileOptions(true, true, true, true).setWriteGlobalSeqno(false)
    try {
      Seams.at("disk.ingest")
      db.ingestExternalFile(java.util.Collections.singletonList(file.getPath), ingesting)
      Seams.at("disk.ingested")
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"a sorted file cannot be added to $dir", e)
    } finally ingesting.close()
  }

  /** Delete all rows in the half-open ranges of keys, of which files that lie wholly in one go at once. */
  def deleteRanges(
      ranges: Seq[(Array[Byte], Array[Byte])]): Unit = if (ranges.nonEmpty) writing { write =>
    // all at once: each call writes RocksDB's manifest
    db.deleteFilesInRanges(db.getDefaultColumnFamily,
      ranges.flatMap { case (from, until) => Seq(from, until) }.asJava, false)
    ranges.foreach { case (from, until) => db.deleteRange(write, from, until) }
  }

  /** Delete the rows with these keys, which may come from a scan of this tier. */
  def deleteRows(keys: Iterator[Array[Byte]]): Unit =
    writing(write => keys.foreach(db.delete(write, _)))

  private def writing(work: WriteOptions => Unit): Unit = {
    dropIdle()
    val write = new WriteOptions().setDisableWAL(true)
    val flush = new FlushOptions().setWaitForFlush(true)
    try {
      Seams.at("disk.delete")
      work(write)
      Seams.at("disk.deleted")
      db.flush(flush)
    } catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"deleting from the local RocksDB $dir failed", e)
    } finally { write.close(); flush.close() }
  }

  /** Rewrite the files so that nothing is left of what was deleted. Takes long, and may run beside everything else: `close` breaks it off. */
  def compact(): Unit = {
    Seams.at("disk.compact")
    compacting.during {
      if (closing) throw MillpondError.storeClosed(dir.getPath)
      try db.compactRange(db.getDefaultColumnFamily, null, null, compaction)
      catch {
        case e: RocksDBException =>
          if (closing) throw MillpondError.storeClosed(dir.getPath)
          throw DiskTier.failure(s"compacting the local RocksDB $dir failed", e)
      }
    }
  }

  def estimatedKeys: Long =
    db.getLongProperty("rocksdb.estimate-num-keys") + sources.iterator.map(_.tier.estimatedKeys).sum

  /** Whether nothing was ever ingested. */
  def isEmpty: Boolean = db.getLiveFilesMetaData.isEmpty

  /** A RocksDB checkpoint in `target` (must not exist) and what it holds, as `publish_snapshot` wants it. */
  def snapshotTo(target: File): ArrayNode = {
    val before = db.getLiveFilesMetaData.asScala
    val checkpoint = Checkpoint.create(db)
    try { Seams.at("disk.snapshot"); checkpoint.createCheckpoint(target.getPath) }
    catch {
      case e: RocksDBException => throw DiskTier.failure(s"a RocksDB checkpoint of $dir failed", e)
    } finally checkpoint.close()
    // a compaction may end between the two lists: names are never reused, so their union describes every file of the checkpoint
    val known =
      (before ++ db.getLiveFilesMetaData.asScala).map(f => f.fileName.stripPrefix("/") -> f).toMap
    val files = Json.obj().putArray("files")
    target.list.filter(_.endsWith(".sst")).sorted.foreach { name =>
      val f = known.getOrElse(name,
        throw MillpondError.internal(
          s"the RocksDB checkpoint $target holds $name, which $dir does not know"))
      files.addObject().put("name", name).put("size_bytes", f.size).put("smallest_hex",
        DiskTier.hex(f.smallestKey))
        .put("largest_hex", DiskTier.hex(f.largestKey)).put("entries", f.numEntries).put(
          "deletions", f.numDeletions).put("level", f.level)
    }
    files
  }

  private def freeOptions(): Unit = {
    reading.close(); readingAhead.close(); compaction.close(); options.close(); bloom.close()
  }

  def close(): Unit = {
    closing = true
    compaction.setCanceled(true)
    compacting.during {
      closeEmptied()
      sources.foreach(_.close())
      sources = Array.empty
      dropIdle()
      db.close()
      freeOptions()
    }
  }
}

/** What every disk tier of an executor has in common. */
final case class DiskConfig(blockCache: LRUCache, compression: CompressionType)

object DiskTier {
  /** Fails with `MILLPOND_LOCAL_FILES_LOST` if the folder of a disk tier was emptied. RocksDB itself goes on with the files that it has open,
    * and notices nothing until it wants another one. */
  def checkFolder(dir: File): Unit =
    if (!new File(dir, "CURRENT").isFile) throw MillpondError.of("LOCAL_FILES_LOST",
      s"the files of the local RocksDB $dir were deleted.")

  def failure(what: String, e: RocksDBException): MillpondException = {
    val text = String.valueOf(e.getMessage)
    // what is damaged need not say so in its text
    val corrupt = text.contains(
      "Corruption:") || (e.getStatus != null && e.getStatus.getCode == Status.Code.Corruption)
    val kind =
      if (text.contains("No space left")) "LOCAL_DISK_FULL"
      else if (text.contains("No such file or directory")) "LOCAL_FILES_LOST"
      else if (corrupt) "SST_DAMAGED"
      else "INTERNAL"
    MillpondError.of(kind, s"$what: $text", cause = e)
  }

  def hex(bytes: Array[Byte]): String = java.util.HexFormat.of().formatHex(bytes)
}

/** Walks the rows of a disk tier in key order; to be closed. */
private[millpond] trait DiskScan {
  def seekToFirst(): Unit
  def seek(target: Array[Byte]): Unit
  def isValid: Boolean
  def next(): Unit
  def key: Array[Byte]
  def value: Array[Byte]
  /** Copies into a direct buffer; returns the full length. */
  def keyInto(buffer: ByteBuffer): Int
  def valueInto(buffer: ByteBuffer): Int
  def close(): Unit
}

/** A RocksDB iterator that is given back once, whoever comes first. */
private[millpond] final class RocksScan(
    it: RocksIterator, giveBack: RocksIterator => Unit) extends DiskScan {
  private var open = true
  override def seekToFirst(): Unit = it.seekToFirst()
  override def seek(target: Array[Byte]): Unit = it.seek(target)
  override def isValid: Boolean = {
    val valid = it.isValid
    if (!valid)
      try it.status()
      catch {
        case e: RocksDBException => throw DiskTier.failure("scanning the local RocksDB failed", e)
      }
    valid
  }
  override def next(): Unit = it.next()
  override def key: Array[Byte] = it.key
  override def value: Array[Byte] = it.value
  override def keyInto(buffer: ByteBuffer): Int = it.key(buffer)
  override def valueInto(buffer: ByteBuffer): Int = it.value(buffer)
  override def close(): Unit = if (open) { open = false; giveBack(it) }
}

/** Writes one SSTable; keys must ascend strictly. `finish` or `abandon` must be called. */
final class SstWriter(options: Options, file: File) {
  // the file goes to the disk while it is written: one large write at its end would hold up every commit that syncs then
  private val env = new EnvOptions().setBytesPerSync(1L << 20)
  private val writer = new SstFileWriter(env, options)
  private var keyBuffer = ByteBuffer.allocateDirect(256)
  private var valueBuffer = ByteBuffer.allocateDirect(4096)
  private var count = 0L
  locally {
    var begun = false
    try { attempt { writer.open(file.getPath); Seams.at("disk.sst") }; begun = true }
    finally if (!begun) abandon() // nobody else can
  }

  def entries: Long = count

  def put(key: Array[Byte], keyAt: Int, keyLength: Int, value: Array[Byte], valueAt: Int,
      valueLength: Int): Unit = {
    if (keyBuffer.capacity < keyLength)
      keyBuffer = ByteBuffer.allocateDirect(RowLimit.bufferFor(keyLength))
    if (valueBuffer.capacity < valueLength)
      valueBuffer = ByteBuffer.allocateDirect(RowLimit.bufferFor(valueLength))
    keyBuffer.clear()
    keyBuffer.put(key, keyAt, keyLength).flip()
    valueBuffer.clear()
    valueBuffer.put(value, valueAt, valueLength).flip()
    attempt(writer.put(keyBuffer, valueBuffer))
    count += 1
  }

  def delete(key: Array[Byte], keyAt: Int, keyLength: Int): Unit = {
    attempt(writer.delete(java.util.Arrays.copyOfRange(key, keyAt, keyAt + keyLength)))
    count += 1
  }

  def finish(): Unit =
    try attempt { Seams.at("disk.sst"); writer.finish() }
    finally free()

  def abandon(): Unit = { free(); file.delete(); () }

  private def free(): Unit = { writer.close(); env.close() }

  private def attempt(action: => Unit): Unit =
    try action
    catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"the sorted file $file cannot be written", e)
    }
}
