package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The key filter of a tier whose files are not mapped. RocksDB estimates how many keys there are
  * from the numbers of puts and deletes: where keys come and go between two flushes, their deletes
  * make it say far too few. The filter is made anew where that helps, and not after each flush. */
object TierFilterPart extends Part {
  override val name = "tier-filter"

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val tier = new DiskTier(new File(dir, "db"), Scratch.config.copy(maps = false))
    val filtered = new FilteredTier(trial, tier, dir)
    try if (trial.chance(30)) filtered.shrink() else filtered.stayAndGrow()
    finally tier.close()
  }
}

private final class FilteredTier(trial: Trial, tier: DiskTier, dir: File) {
  import trial.{check, equal, random}

  private val budget = new MemoryBudget(1L << 28)
  private val rows = random.between(12000, 40000)
  private var live = rows // the keys from 0 on
  private var files = 0
  private var scans = 0

  trial.step(s"$rows rows")
  flush(0, 0 until rows, isPut = true)
  lookUp()

  def stayAndGrow(): Unit = {
    trial.step("other keys come and go between flushes")
    (1 to 12).foreach(_ => comeAndGo())
    equal(tier.estimatedKeys, 0L, "RocksDB's estimate")
    check(scans <= 3, s"$scans scans of rows that never changed")
    trial.step("and the tier becomes five times as large")
    val before = scans
    (1 to 8).foreach { _ =>
      flush(0, live until live + rows / 2, isPut = true)
      live += rows / 2
      comeAndGo()
    }
    check(scans - before <= 3, s"${scans - before} scans of a tier that grew")
  }

  def shrink(): Unit = {
    trial.step("most rows end")
    val used = tier.lookup.usedBytes
    live = rows / 100
    flush(0, live until rows, isPut = false)
    lookUp()
    equal(scans, 2, "the number of scans")
    check(tier.lookup.usedBytes < used / 4, s"of $used bytes ${tier.lookup.usedBytes} are left")
  }

  /** Of keys that came and went since the last flush the tier gets the deletes. */
  private def comeAndGo(): Unit = {
    flush(1, 0 until rows / 6, isPut = false)
    lookUp()
  }

  private def flush(first: Int, of: Range, isPut: Boolean): Unit = {
    files += 1
    val file = new File(dir, s"$files.sst")
    val writer = tier.sstWriter(file)
    of.map(key(first, _)).foreach { k =>
      if (isPut) writer.put(k, 0, k.length, k, 0, k.length) else writer.delete(k, 0, k.length)
    }
    writer.finish()
    tier.ingest(file)
  }

  /** A read comes to the disk: the filter is made, if it is to be. */
  private def lookUp(): Unit = {
    if (tier.lookup.isWanted) {
      scans += 1
      tier.lookup.begin(budget)
      Scratch.finish(tier.lookup, 500)
    }
    def lacks(first: Int, n: Int): Boolean = {
      val k = key(first, n)
      tier.lookup.lacks(k, k.length)
    }
    check(!(0 until live).exists(lacks(0, _)), "a key that is there is denied")
    val denied = (0 until 1000).count(lacks(2, _))
    check(denied > 950, s"of 1000 keys that are not there $denied are denied")
  }

  private def key(first: Int, n: Int): Array[Byte] =
    ByteBuffer.allocate(8).putInt(first).putInt(n).array
}
