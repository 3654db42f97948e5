package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The room for a large value goes with the next small one, whoever finds that: an executor may
  * have hundreds of stores. */
object LargeValuePart extends Part {
  override val name = "large-value"
  private val SmallBytes = 100
  private val MostKeptBytes = 1 << 20

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val largeBytes = (2 << 20) + trial.random.nextInt(4 << 20)
    val tier = Scratch.tier(new File(dir, "db"))
    try {
      val file = new File(dir, "rows.sst")
      val writer = tier.sstWriter(file)
      val (small, large) = (key('a'), key('b'))
      writer.put(small, 0, small.length, new Array[Byte](SmallBytes), 0, SmallBytes)
      writer.put(large, 0, large.length, new Array[Byte](largeBytes), 0, largeBytes)
      writer.finish()
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
      read("the tables")
    } finally tier.close()
  }

  private def key(of: Char): Array[Byte] = Array[Byte](0, 0, 0, 0, of.toByte)
}
