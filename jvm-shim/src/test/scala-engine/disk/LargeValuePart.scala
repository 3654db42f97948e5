package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The room for a large value goes with the next small one, whoever finds that: an executor may
  * have hundreds of stores. */
object LargeValuePart extends Part {
  override val name = "large-value"
  @volatile private var isSlow = false
  override def stretch(what: String, usual: Long): Long =
    if (what == "disk.slow" && isSlow) -1L else usual
  private val SmallBytes = 100
  private val MostKeptBytes = 1 << 20
  private val Between = 100 // rows: the small value and the large one are not in one block
  private val Looks = 8 // of the reads of a thread, one is looked at

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
