package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Where reads of mapped pages are slow, blocks are read from the files alone, and through the
  * mapping again when no read is slow any more. Meanwhile files come, a compaction replaces
  * them, and passes of maintenance close what nobody reads. */
object SingleReadsPart extends Part {
  override val name = "single-reads"
  @volatile private var isSlow = false
  override def stretch(what: String, usual: Long): Long = what match {
    case "disk.slow" => if (isSlow) -1L else Long.MaxValue
    case "disk.passes" => 0L
    case _ => usual
  }

  override def run(trial: Trial): Unit = {
    pace(trial)
    Scratch.within(trial, name) { dir =>
      val tier = Scratch.tier(new File(dir, "db"))
      try new SingleTier(trial, tier, dir).run()
      finally { isSlow = false; tier.close() }
    }
    trial.equal(SingleReads.openFiles.get, 0, "files that are open after the end")
  }

  /** One slow read is chance. */
  private def pace(trial: Trial): Unit = {
    val reads = new BlockReads
    def after(slow: Boolean, times: Int = 1): Boolean = {
      isSlow = slow
      (1 to times).foreach(_ => reads.took(0L, 4096))
      reads.isSingle
    }
    trial.check(!after(slow = true), "one slow read, the first")
    trial.check(!after(slow = false, 16) && !after(slow = true), "one of 16")
    trial.check(!after(slow = false, 15) && after(slow = true), "two of 16")
    trial.check(after(slow = false, 1024), "none of 1024")
    trial.check(!after(slow = false), "none of more")
  }

  private final class SingleTier(trial: Trial, tier: DiskTier, dir: File) {
    import trial.{chance, random}
    private val budget = new MemoryBudget(1L << 24)
    private var rows = 0

    def run(): Unit = {
      add()
      lookUp()
      isSlow = true
      (1 to random.between(2, 8)).foreach { _ =>
        if (chance(50)) add()
        if (chance(30)) tier.compact()
        if (chance(40)) lookUp()
        isSlow = chance(80)
        read()
        if (chance(30)) Scratch.rest(trial, tier)
      }
      isSlow = true
      add() // which looks whether a compaction has replaced files
      lookUp()
      read()
      trial.check(!tier.lookup.hasPlaces || SingleReads.openFiles.get > 0, "no file is open")
      Scratch.rest(trial, tier)
      trial.equal(SingleReads.openFiles.get, 0, "files that are open after two passes")
      read()
    }

    private def read(): Unit = Seq.fill(40)(random.nextInt(rows)).foreach { n =>
      trial.equal(tier.get(key(n), 8), lengthOf(n), s"the length of $n")
      trial.equal(tier.lastValue.take(8).toSeq, key(n).toSeq, s"the value of $n")
      trial.equal(tier.get(key(n) :+ 1.toByte, 9), -1, s"a key behind $n")
    }

    private def lookUp(): Unit = if (tier.lookup.isWanted) {
      tier.lookup.begin(budget)
      Scratch.finish(tier.lookup, 500)
    }

    private def add(): Unit = {
      val file = new File(dir, s"$rows.sst")
      val writer = tier.sstWriter(file)
      val until = rows + random.between(1, 300)
      (rows until until).foreach { n =>
        val value = java.util.Arrays.copyOf(key(n), lengthOf(n))
        writer.put(key(n), 0, 8, value, 0, value.length)
      }
      rows = until
      writer.finish()
      tier.ingest(file)
    }

    private def lengthOf(n: Int): Int = if (n % 100 == 7) 20000 else 8 + n % 500
    private def key(n: Int): Array[Byte] =
      java.nio.ByteBuffer.allocate(8).putInt(0).putInt(n).array
  }
}
