package org.apache.spark.sql.millpond.disk

import java.io.File
import java.lang.management.ManagementFactory

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The room for a large value goes with the next small one, whoever finds that: an executor may
  * have hundreds of stores. A merge of many files needs little of the heap. */
object LargeValuePart extends Part {
  override val name = "large-value"
  @volatile private var isSlow = false
  override def stretch(what: String, usual: Long): Long =
    if (what == "disk.slow" && isSlow) -1L else usual
  private val SmallBytes = 100
  private val MostKeptBytes = 1 << 20
  private val Between = 100 // rows: the small value and the large one are not in one block
  private val Looks = 8 // of the reads of a thread, one is looked at
  private val Files = 16 // of a merge
  private val MostBytesOfFile = 128 << 10 // of the heap, for a merge
  private val memory =
    ManagementFactory.getThreadMXBean.asInstanceOf[com.sun.management.ThreadMXBean]

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    import trial.{chance, random}
    def largeLength(): Int = (2 << 20) + random.nextInt(4 << 20)
    val value = new Array[Byte](largeLength())
    if (chance(50)) random.nextBytes(value) // it is stored as it is
    val largeBytes = value.length
    isSlow = chance(50)
    val tier = Scratch.tier(new File(dir, "db"))
    try {
      val file = new File(dir, "rows.sst")
      val writer = tier.sstWriter(file)
      val small = key('a')
      val large = java.util.Arrays.copyOf(key('b'), if (chance(30)) largeLength() else 5)
      writer.put(small, 0, small.length, new Array[Byte](SmallBytes), 0, SmallBytes)
      (0 until Between).foreach { n =>
        val next = small :+ n.toByte
        writer.put(next, 0, next.length, new Array[Byte](SmallBytes), 0, SmallBytes)
      }
      writer.put(large, 0, large.length, value, 0, largeBytes)
      writer.finish()
      fail(trial, file, small)
      tier.ingest(file)
      def read(how: String): Unit = {
        trial.step(s"$largeBytes bytes by $how")
        trial.equal(tier.get(large, large.length), largeBytes, "the large value")
        trial.equal(tier.get(small, small.length), SmallBytes, "the small value")
        val kept = tier.lastValue.length
        val fits = kept >= SmallBytes && kept <= MostKeptBytes
        trial.check(fits, s"by $how it keeps room for $kept bytes")
      }
      read("RocksDB")
      tier.lookup.begin(new MemoryBudget(1L << 24))
      Scratch.finish(tier.lookup, 50)
      trial.check(tier.lookup.hasPlaces, "there are no tables")
      (1 to Looks).foreach { _ =>
        read("the tables")
        val kept = PointReads.blocks.get.roomBytes
        trial.check(kept <= MostKeptBytes, s"this thread keeps room for $kept bytes of blocks")
      }
    } finally { isSlow = false; tier.close() }
    merge(trial, new File(dir, "merged"))
  }

  /** A scan has a block of each file at the same time. On the heap it has none. */
  private def merge(trial: Trial, dir: File): Unit = {
    val tier = Scratch.tier(dir)
    try {
      val value = new Array[Byte](2 << 20)
      trial.random.nextBytes(value) // it is stored as it is
      (0 until Files).foreach { n =>
        // each file has keys between those of others, so they are merged
        val file = new File(dir, s"rows-$n.sst")
        val writer = tier.sstWriter(file)
        Seq('a' -> value.length, 'b' -> SmallBytes).foreach { case (first, length) =>
          val row = key(first) :+ n.toByte
          writer.put(row, 0, row.length, value, 0, length)
        }
        writer.finish()
        tier.ingest(file)
      }
      tier.lookup.begin(new MemoryBudget(1L << 24))
      Scratch.finish(tier.lookup, 50)
      trial.check(tier.lookup.hasPlaces, "there are no tables of the merged files")
      val scan = tier.iterator(readAhead = true)
      try {
        trial.check(scan.isInstanceOf[MappedScan], "RocksDB merges")
        val before = memory.getCurrentThreadAllocatedBytes
        scan.seek(key('a'))
        val taken = memory.getCurrentThreadAllocatedBytes - before
        trial.check(taken <= Files * MostBytesOfFile, s"the seek takes $taken bytes of the heap")
        var rows = 0
        while (scan.isValid) {
          val length = if (rows < Files) value.length else SmallBytes
          trial.check(java.util.Arrays.equals(scan.value, value.take(length)), s"row $rows differs")
          rows += 1
          scan.next()
        }
        trial.equal(rows, 2 * Files, "the rows")
      } finally scan.close()
    } finally tier.close()
  }

  /** What a block had before a load that failed may be gone. */
  private def fail(trial: Trial, file: File, small: Array[Byte]): Unit = {
    val (sst, block) = (new MappedSst(file), new SstBlock)
    try {
      trial.check(sst.understand(block), "the file is not read")
      sst.load(block, 0)
      trial.check(block.find(small, small.length), "the first block lacks the small value")
      var isDamaged = false
      try block.load(sst, sst.bytes, 100)
      catch { case e: MillpondException if e.kind == "SST_DAMAGED" => isDamaged = true }
      trial.check(isDamaged, "a block behind the end is read")
      trial.check(!block.find(small, small.length), "the block still finds the small value")
      trial.check(!block.next() && block.valueLength == 0, "the block has another entry")
    } finally sst.close()
  }

  private def key(of: Char): Array[Byte] = Array[Byte](0, 0, 0, 0, of.toByte)
}
