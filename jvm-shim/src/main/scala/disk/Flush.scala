package org.apache.spark.sql.millpond.disk

import java.io.File
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable

import org.apache.spark.sql.millpond.base.{Op, Seams}
import org.apache.spark.sql.millpond.changelog.{ChangelogReader, PendingChangelog}
import org.apache.spark.sql.millpond.memory.{KeySort, MemoryBudget}
import org.apache.spark.sql.millpond.rows.RowFilter

/** Turns changelogs into sorted files for the disk tier. It reads files alone, so it takes nothing
  * from the running batch. It writes a key of many versions once.
  *
  * When the tier has taken in a file, the positions of its changelogs advance. A flush that failed
  * goes on from there, so it applies nothing twice.
  *
  * @param mostBytes about how much memory it may fill before it writes a file; all flushes
  * of the JVM share it */
private[millpond] final class Flush(disk: DiskTier, workDir: File, mostBytes: Long) {
  private var blocks = new Array[Array[Byte]](16)
  private var blockCount = 0
  private var blockBytes = 0L
  private var count = 0
  private var recordBlock = new Array[Int](1 << 12)
  private var keyAt = new Array[Int](1 << 12)
  private var keyLength = new Array[Int](1 << 12)
  private var valueAt = new Array[Int](1 << 12)
  private var valueLength = new Array[Int](1 << 12) // -1: delete
  private var filter: RowFilter = null // of the changelog that is being read
  private var appends = new java.util.BitSet // records that append to what was there
  // up to which block of each changelog
  private val gathered = mutable.LinkedHashMap.empty[PendingChangelog, Int]
  private var uncertain = false

  /** Whether an ingest failed half-way: the tier may or may not hold the last file, so
    * positions prove nothing. */
  def isUncertain: Boolean = uncertain

  /** Apply the changelogs in order, each from its position on. Returns the number of entries
    * written. If a file is not the one that this store wrote or replayed (checkpoint format 1: a
    * later attempt of the version replaced it), fails with `MILLPOND_CHANGELOG_REPLACED`. */
  def run(changelogs: Seq[PendingChangelog]): Long = {
    Flush.running.incrementAndGet(): Unit
    try {
      var written = 0L
      changelogs.foreach(c => if (!c.isFlushed) written += read(c))
      written + writeDown()
    } finally Flush.running.decrementAndGet(): Unit
  }

  /** Gather the records of a changelog that the tier lacks. When memory is full, ingest them before
    * the next block. Later files win over earlier ones. */
  private def read(c: PendingChangelog): Long = {
    filter = c.filter
    Seams.at("flush.open")
    val cursor = new ChangelogReader(c.path).cursor()
    try {
      if (cursor.header.get("id").asText != c.id)
        throw PendingChangelog.replaced(c)
      cursor.skip(c.flushedBlocks)
      var position = c.flushedBlocks
      var written = 0L
      while ({ Seams.at("flush.read"); cursor.next(add(_, _, _, _, _, _)) }) {
        position += 1
        gathered(c) = position
        if (blockBytes + count * Flush.RecordBytes > Flush.share(mostBytes)) written += writeDown()
      }
      gathered(c) = PendingChangelog.Whole
      written
    } finally cursor.close()
  }

  private def add(op: Byte, block: Array[Byte], key: Int, keyBytes: Int, value: Int,
      valueBytes: Int): Unit = {
    if (filter != null && !filter.wants(block, key, keyBytes)) return
    if (blockCount == 0 || (blocks(blockCount - 1) ne block)) {
      if (blockCount == blocks.length) blocks = java.util.Arrays.copyOf(blocks, blockCount * 2)
      blocks(blockCount) = block
      blockCount += 1
      blockBytes += block.length
    }
    if (count == keyAt.length) {
      recordBlock = java.util.Arrays.copyOf(recordBlock, count * 2)
      keyAt = java.util.Arrays.copyOf(keyAt, count * 2)
      keyLength = java.util.Arrays.copyOf(keyLength, count * 2)
      valueAt = java.util.Arrays.copyOf(valueAt, count * 2)
      valueLength = java.util.Arrays.copyOf(valueLength, count * 2)
    }
    recordBlock(count) = blockCount - 1
    keyAt(count) = key
    keyLength(count) = keyBytes
    valueAt(count) = value
    valueLength(count) = valueBytes
    if (op == Op.Merge) appends.set(count)
    count += 1
  }

  private def compare(a: Int, b: Int): Int =
    java.util.Arrays.compareUnsigned(blocks(recordBlock(a)), keyAt(a), keyAt(a) + keyLength(a),
      blocks(recordBlock(b)), keyAt(b), keyAt(b) + keyLength(b))

  /** Indices in key order; of equal keys the later record is last. */
  private def sorted(): Array[Int] = {
    val words = leadingWords()
    val order = KeySort.byWord(words)
    val scratch = new Array[Int](count)
    var low = 0
    while (low < count) {
      val word = words(order(low))
      var high = low + 1
      while (high < count && words(order(high)) == word) high += 1
      if (high - low > 1) KeySort.byComparison(order, scratch, low, high, compare)
      low = high
    }
    order
  }

  /** Eight bytes of each key that agree with the order of the keys: slot and family, then
    * the first four bytes behind what all keys have in common (version byte, null bits),
    * zeros where a key ends. */
  private def leadingWords(): Array[Long] = {
    var common = Int.MaxValue
    var i = 0
    while (i < count && common > 0) {
      val length = math.min(keyLength(0), keyLength(i))
      val at = java.util.Arrays.mismatch(blocks(recordBlock(0)), keyAt(0) + 4, keyAt(0) + length,
        blocks(recordBlock(i)), keyAt(i) + 4, keyAt(i) + length)
      common = math.min(common, if (at < 0) length - 4 else at)
      i += 1
    }
    val words = new Array[Long](count)
    i = 0
    while (i < count) {
      val block = blocks(recordBlock(i))
      words(i) = bytesAt(block, keyAt(i), keyAt(i) + 4) << 32 | bytesAt(block,
        keyAt(i) + 4 + common, keyAt(i) + keyLength(i))
      i += 1
    }
    words
  }

  /** Four bytes, big-endian. Bytes at and behind `end` count as zeros. */
  private def bytesAt(block: Array[Byte], at: Int, end: Int): Long = {
    var word = 0L
    var i = at
    while (i < at + 4) { word = word << 8 | (if (i < end) block(i) & 0xFFL else 0L); i += 1 }
    word
  }

  /** Ingest the gathered records into the tier. */
  private def writeDown(): Long = {
    val entries = if (count == 0) 0L
    else {
      val files = mutable.ArrayBuffer.empty[File]
      try {
        val entries = write(files.addOne(_): Unit)
        if (files.nonEmpty) ingest(files)
        entries
      } finally files.foreach(_.delete()) // the tier has moved the others into its folder
    }
    gathered.foreach { case (c, position) => c.flushedBlocks = position }
    clear()
    entries
  }

  /** Write the last record of each key into sorted files; none if nothing is left. As a rule it is
    * one: but a few appended bytes may be the end of a long list.
    * @param made takes each file that is complete */
  private def write(made: File => Unit): Long = {
    val order = sorted()
    val keepDeletes = !disk.isEmpty // an empty tier has nothing that a delete could hide
    Seams.at("flush.write")
    var keyBytes = 0L
    (0 until count).foreach(i => keyBytes += keyLength(i))
    var entries = 0L
    var i = 0
    while (i < count) {
      val file = new File(workDir, s"flush-${java.util.UUID.randomUUID}.sst")
      val writer = disk.sstWriter(file, count.toLong, keyBytes, blockBytes)
      var done = false
      try {
        while (i < count && writer.hasRoom) {
          if (i + 1 == count || compare(order(i), order(i + 1)) != 0)
            put(writer, order, i, keepDeletes)
          i += 1
        }
        entries += writer.entries
        if (writer.entries > 0) {
          Seams.at("flush.finish")
          writer.finish()
          made(file)
          done = true
        }
      } finally if (!done) writer.abandon()
    }
    entries
  }

  /** Write the last record of a key. */
  private def put(writer: SstWriter, order: Array[Int], i: Int, keepDeletes: Boolean): Unit = {
    val r = order(i)
    val block = blocks(recordBlock(r))
    if (appends.get(r)) {
      val whole = assemble(order, i)
      writer.put(block, keyAt(r), keyLength(r), whole, 0, whole.length)
    } else if (valueLength(r) >= 0)
      writer.put(block, keyAt(r), keyLength(r), block, valueAt(r), valueLength(r))
    else if (keepDeletes) writer.delete(block, keyAt(r), keyLength(r))
  }

  private def ingest(files: Iterable[File]): Unit = {
    uncertain = true
    files.foreach { file =>
      Seams.at("flush.ingest")
      disk.ingest(file)
      Seams.at("flush.ingested")
    }
    uncertain = false
  }

  /** The value that ends with the append at `order(last)`: the put before it, or else the tier's
    * value, and all appends since. Sorted files hold whole values only, so every reader of
    * RocksDB can read them. A list may be large: nothing here is larger. */
  private def assemble(order: Array[Int], last: Int): Array[Byte] = {
    var first = last
    while (appends.get(order(first)) && first > 0 && compare(order(first - 1), order(first)) == 0)
      first -= 1
    var before = Array.emptyByteArray
    if (appends.get(order(first))) {
      val r = order(first)
      val key =
        java.util.Arrays.copyOfRange(blocks(recordBlock(r)), keyAt(r), keyAt(r) + keyLength(r))
      Seams.at("flush.get")
      val found = disk.read(key)
      if (found != null) before = found
    }
    var length = before.length
    (first to last).foreach(i =>
      length = Math.addExact(length, math.max(0, valueLength(order(i)))))
    val whole = java.util.Arrays.copyOf(before, length)
    var at = before.length
    (first to last).foreach { i =>
      val r = order(i)
      val added = math.max(0, valueLength(r))
      System.arraycopy(blocks(recordBlock(r)), valueAt(r), whole, at, added)
      at += added
    }
    whole
  }

  private def clear(): Unit = {
    java.util.Arrays.fill(blocks.asInstanceOf[Array[AnyRef]], null)
    appends = new java.util.BitSet
    gathered.clear()
    blockCount = 0
    blockBytes = 0L
    count = 0
  }
}

private[millpond] object Flush {
  private val MostBytes = 64L << 20
  private val LeastBytes = 1L << 20
  // memory of a record beside its block: its position, and its place in the order
  private val RecordBytes = 36L
  private val running = new AtomicInteger

  /** How much all flushes together may gather. It lies in the heap, and the budget follows
    * the heap's size. */
  def mostBytes(budget: MemoryBudget): Long =
    math.max(LeastBytes, math.min(MostBytes, budget.limitBytes / 4))
  private def share(mostBytes: Long): Long =
    Seams.stretch("flush.gather", mostBytes / math.max(1, running.get))
}
