package org.apache.spark.sql.millpond

import java.io.File
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable

/** Turns changelogs into sorted files for the disk tier. Works on files alone, so it takes nothing from the running batch;
  * a key that was written in many versions is written once.
  *
  * Each file that the tier has taken in moves on the position of the changelogs that it came from: a flush that failed is tried again from
  * there, and nothing is applied twice.
  *
  * @param mostBytes about how much memory it may take before it writes down what it has; all flushes of the JVM share it
  * @param giveWay called every now and then: work that nobody waits for stands aside in it */
private[millpond] final class Flush(disk: DiskTier, workDir: File, mostBytes: Long,
    giveWay: () => Unit = () => ()) {
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
  private val gathered =
    mutable.LinkedHashMap.empty[PendingChangelog, Int] // and up to which of their blocks
  private var uncertain = false

  /** Whether the tier may or may not hold the file that it was to take in last: positions say nothing any more. */
  def isUncertain: Boolean = uncertain

  /** Apply the changelogs in order, each from its position on. Returns the number of entries written. If a file is not the one that this
    * store wrote or replayed (checkpoint format 1: a later attempt of the version replaced it), fails with `MILLPOND_CHANGELOG_REPLACED`. */
  def run(changelogs: Seq[PendingChangelog]): Long = {
    Flush.running.incrementAndGet(): Unit
    try {
      var written = 0L
      changelogs.foreach(c => if (!c.isFlushed) written += read(c))
      written + writeDown()
    } finally Flush.running.decrementAndGet(): Unit
  }

  /** Gather what the tier has not of a changelog; what becomes too much goes down before more is read. Later files win over earlier ones. */
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
    if (op == Op.DeleteRange) throw MillpondError.internal(s"changelog record kind $op")
    if (filter != null && !filter.wants(block, key, keyBytes)) return
    if (blockCount == 0 || (blocks(blockCount - 1) ne block)) {
      if (blockCount == blocks.length) blocks = java.util.Arrays.copyOf(blocks, blockCount * 2)
      blocks(blockCount) = block
      blockCount += 1
      blockBytes += block.length
      giveWay()
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

  /** Eight bytes of each key that agree with the order of the keys: slot and family, then the first four bytes behind what all keys have in
    * common (version byte, null bits), zeros where a key ends. */
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

  /** Four bytes, big-endian, of which those at and behind `end` count as zeros. */
  private def bytesAt(block: Array[Byte], at: Int, end: Int): Long = {
    var word = 0L
    var i = at
    while (i < at + 4) { word = word << 8 | (if (i < end) block(i) & 0xFFL else 0L); i += 1 }
    word
  }

  /** Bring what was gathered into the tier. */
  private def writeDown(): Long = {
    val entries = if (count == 0) 0L
    else {
      val file = new File(workDir, s"flush-${java.util.UUID.randomUUID}.sst")
      val entries = write(file)
      if (entries > 0) ingest(file)
      entries
    }
    gathered.foreach { case (c, position) => c.flushedBlocks = position }
    clear()
    entries
  }

  /** Write the last record of each key into a sorted file; none if nothing is left. */
  private def write(file: File): Long = {
    val order = sorted()
    val keepDeletes = !disk.isEmpty // an empty tier has nothing that a delete could hide
    Seams.at("flush.write")
    val writer = disk.sstWriter(file)
    var done = false
    try {
      var i = 0
      while (i < count) {
        val r = order(i)
        if (i + 1 == count || compare(r, order(i + 1)) != 0) {
          val block = blocks(recordBlock(r))
          if (appends.get(r)) {
            val whole = assemble(order, i)
            writer.put(block, keyAt(r), keyLength(r), whole, 0, whole.length)
          } else if (valueLength(r) >= 0)
            writer.put(block, keyAt(r), keyLength(r), block, valueAt(r), valueLength(r))
          else if (keepDeletes) writer.delete(block, keyAt(r), keyLength(r))
        }
        i += 1
        if (i % Flush.Stretch == 0) giveWay()
      }
      val entries = writer.entries
      if (entries > 0) { Seams.at("flush.finish"); writer.finish(); done = true }
      entries
    } finally if (!done) writer.abandon()
  }

  private def ingest(file: File): Unit = {
    uncertain = true
    try {
      Seams.at("flush.ingest")
      disk.ingest(file)
      Seams.at("flush.ingested")
      uncertain = false
    } finally if (uncertain) file.delete(): Unit
  }

  /** The value that ends with the append at `order(last)`: the put before it or what the tier has, and all appends since. Sorted files hold whole
    * values only, so that anything that reads RocksDB can read them. */
  private def assemble(order: Array[Int], last: Int): Array[Byte] = {
    var first = last
    while (appends.get(order(first)) && first > 0 && compare(order(first - 1), order(first)) == 0)
      first -= 1
    val out = new java.io.ByteArrayOutputStream
    if (appends.get(order(first))) {
      val r = order(first)
      val key =
        java.util.Arrays.copyOfRange(blocks(recordBlock(r)), keyAt(r), keyAt(r) + keyLength(r))
      Seams.at("flush.get")
      val before = disk.read(key)
      if (before != null) out.write(before, 0, before.length)
    }
    (first to last).foreach { i =>
      val r = order(i)
      if (valueLength(r) > 0) out.write(blocks(recordBlock(r)), valueAt(r), valueLength(r))
    }
    out.toByteArray
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

/** A changelog that the disk tier does not hold yet.
  *
  * @param memoryBytes about how much memory its rows fill
  * @param filter the rows that are wanted of it; null: all */
private[millpond] final case class PendingChangelog(version: Long, id: String, path: String,
    memoryBytes: Long, filter: RowFilter = null) {
  /** How many of its blocks the disk tier holds all the same. `diskLock` is held by whoever changes it. */
  var flushedBlocks = 0
  def isFlushed: Boolean = flushedBlocks == PendingChangelog.Whole
}

private[millpond] object PendingChangelog {
  val Whole: Int = Int.MaxValue

  def replaced(c: PendingChangelog): MillpondException =
    MillpondError.of("CHANGELOG_REPLACED",
      s"the changelog ${c.path} was replaced by another attempt of version ${c.version}.")
}

private[millpond] object Flush {
  private val MostBytes = 32L << 20
  private val LeastBytes = 1L << 20
  private val RecordBytes =
    36L // what a record takes beside its block: where it lies, and its place in the order
  private val Stretch =
    1024 // entries between two looks at whether to give way: about a quarter of a millisecond
  private val running = new AtomicInteger

  /** How much all flushes together may gather: it lies in the heap, of which the budget is a measure. */
  def mostBytes(budget: MemoryBudget): Long =
    math.max(LeastBytes, math.min(MostBytes, budget.limitBytes / 8))
  private def share(mostBytes: Long): Long =
    Seams.stretch("flush.gather", mostBytes / math.max(1, running.get))
}
