package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A file with more blocks than three bytes of an entry can name is read like others: rows that
  * compress well make such files of the usual size. A key that a file of large rows lacks costs no
  * read of a block, however many blocks there are. */
object ManyBlocksPart extends Part {
  override val name = "many-blocks"
  private val ValueBytes = 4096 // a block each
  private val RowsOfOneFile = Seq(30000, 140000)
  private val Reads = 2000

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val budget = new MemoryBudget(1L << 24)
    val tier = Scratch.tier(new File(dir, "db"))
    try {
      val isFirst = trial.chance(50)
      val rows = RowsOfOneFile(trial.random.nextInt(RowsOfOneFile.size))
      if (isFirst) ingest(tier, new File(dir, "rows.sst"), rows)
      else ingest(tier, new File(dir, "small.sst"), 10)
      tier.lookup.begin(budget)
      Scratch.finish(tier.lookup, 5000)
      if (!isFirst) ingest(tier, new File(dir, "rows.sst"), rows)
      trial.check(tier.lookup.hasPlaces, "there are no tables")
      trial.equal(budget.usedBytes, tier.lookup.usedBytes, "the memory of the tables")
      val numbers = Seq(0, rows - 1) ++ Seq.fill(Reads)(trial.random.nextInt(rows))
      var vain = 0
      numbers.foreach { n =>
        val wanted = key(n)
        trial.equal(tier.get(wanted, wanted.length), ValueBytes, s"the value of $n")
        wanted(0) = 1
        trial.equal(tier.get(wanted, wanted.length), -1, s"a key beside $n")
        if (tier.hasReadDisk) vain += 1
      }
      trial.check(vain <= Reads / 200, s"$vain of $Reads keys that are not there cost a read")
    } finally tier.close()
    trial.equal(budget.usedBytes, 0L, "memory after the end")
  }

  private def ingest(tier: DiskTier, file: File, until: Int): Unit = {
    val writer = tier.sstWriter(file)
    val value = new Array[Byte](ValueBytes)
    (0 until until).foreach { n =>
      val row = key(n)
      writer.put(row, 0, row.length, value, 0, ValueBytes)
    }
    writer.finish()
    tier.ingest(file)
  }

  private def key(n: Int): Array[Byte] =
    java.nio.ByteBuffer.allocate(8).putInt(0).putInt(n).array
}
