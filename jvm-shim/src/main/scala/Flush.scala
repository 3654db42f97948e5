package org.apache.spark.sql.millpond

import java.io.File

/** Turns changelogs into sorted files for the disk tier. Works on files alone, so it takes nothing from the running batch;
  * a key that was written in many versions is written once.
  *
  * @param giveWay called every now and then: work that nobody waits for stands aside in it */
private[millpond] final class Flush(disk: DiskTier, workDir: File, giveWay: () => Unit = () => ()) {
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

  /** Apply the changelogs in order. Returns the number of entries written. If a file is not the one that this store wrote or replayed
    * (checkpoint format 1: a later attempt of the version replaced it), fails with `MILLPOND_CHANGELOG_REPLACED`. */
  def run(changelogs: Seq[PendingChangelog]): Long = {
    var written = 0L
    changelogs.foreach { c =>
      filter = c.filter
      val header = new ChangelogReader(c.path).read(add(_, _, _, _, _, _))
      if (header.get("id").asText != c.id)
        throw MillpondError.of("CHANGELOG_REPLACED", s"the changelog ${c.path} was replaced by another attempt of version ${c.version}.")
      // bounded memory: what was gathered goes down before more is read; later files win over earlier ones
      if (blockBytes > Seams.stretch("flush.gather", Flush.GatherBytes)) written += writeDown()
    }
    written + writeDown()
  }

  private def add(op: Byte, block: Array[Byte], key: Int, keyBytes: Int, value: Int, valueBytes: Int): Unit = {
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
    java.util.Arrays.compareUnsigned(blocks(recordBlock(a)), keyAt(a), keyAt(a) + keyLength(a), blocks(recordBlock(b)), keyAt(b), keyAt(b) + keyLength(b))

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
      val at = java.util.Arrays.mismatch(blocks(recordBlock(0)), keyAt(0) + 4, keyAt(0) + length, blocks(recordBlock(i)), keyAt(i) + 4, keyAt(i) + length)
      common = math.min(common, if (at < 0) length - 4 else at)
      i += 1
    }
    val words = new Array[Long](count)
    i = 0
    while (i < count) {
      val block = blocks(recordBlock(i))
      words(i) = bytesAt(block, keyAt(i), keyAt(i) + 4) << 32 | bytesAt(block, keyAt(i) + 4 + common, keyAt(i) + keyLength(i))
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

  private def writeDown(): Long = if (count == 0) 0L else {
    val order = sorted()
    val keepDeletes = !disk.isEmpty // an empty tier has nothing that a delete could hide
    val file = new File(workDir, s"flush-${java.util.UUID.randomUUID}.sst")
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
          } else if (valueLength(r) >= 0) writer.put(block, keyAt(r), keyLength(r), block, valueAt(r), valueLength(r))
          else if (keepDeletes) writer.delete(block, keyAt(r), keyLength(r))
        }
        i += 1
        if (i % Flush.Stretch == 0) giveWay()
      }
      val entries = writer.entries
      if (entries > 0) { writer.finish(); done = true; Seams.at("flush.ingest"); disk.ingest(file); Seams.at("flush.ingested") }
      clear()
      entries
    } finally if (!done) writer.abandon()
  }

  /** The value that ends with the append at `order(last)`: the put before it or what the tier has, and all appends since. Sorted files hold whole
    * values only, so that anything that reads RocksDB can read them. */
  private def assemble(order: Array[Int], last: Int): Array[Byte] = {
    var first = last
    while (appends.get(order(first)) && first > 0 && compare(order(first - 1), order(first)) == 0) first -= 1
    val out = new java.io.ByteArrayOutputStream
    if (appends.get(order(first))) {
      val r = order(first)
      val key = java.util.Arrays.copyOfRange(blocks(recordBlock(r)), keyAt(r), keyAt(r) + keyLength(r))
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
    blockCount = 0
    blockBytes = 0L
    count = 0
  }
}

/** A changelog that the disk tier does not hold yet.
  *
  * @param memoryBytes about how much memory its rows fill
  * @param filter the rows that are wanted of it; null: all */
private[millpond] final case class PendingChangelog(version: Long, id: String, path: String, memoryBytes: Long, filter: RowFilter = null)

private[millpond] object Flush {
  private val GatherBytes = 32L << 20
  private val Stretch = 1024 // entries between two looks at whether to give way: about a quarter of a millisecond
}
