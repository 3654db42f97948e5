package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.base.LocalDirs
import org.apache.spark.sql.millpond.rows.{FamilyKind, FamilyOwnership, OwnedSlots}

/** The rows of some slots that a rescale left in the database of another old partition. They belong
  * to the disk tier, which has not copied them yet. Nobody writes to that database. */
private[disk] final class TierSource(val tier: DiskTier, owned: OwnedSlots,
    families: FamilyOwnership) {
  def owns(key: Array[Byte], length: Int): Boolean = families.owns(owned, key, 0, length)

  /** The first slot at or behind `slot` that may have wanted rows. */
  def slotFrom(slot: Int): Int = if (slot >= FamilyKind.ReservedSlot || owned.contains(slot)) slot
  else math.min(owned.above(slot), FamilyKind.ReservedSlot)

  def scan(readAhead: Boolean): SourceScan = new SourceScan(this, tier.iterator(readAhead))

  /** Copy the rows into sorted files of `target`'s format, none if there are none.
    * @param file the next one
    * @param made takes each file that is complete */
  def copyTo(target: DiskTier, file: => File)(made: File => Unit): Unit = {
    val rows = scan(readAhead = true)
    try {
      rows.seek(Array[Byte](0, 0))
      while (rows.key != null) {
        val next = file
        copy(rows, target.sstWriter(next))
        made(next)
      }
    } finally rows.close()
  }

  private def copy(rows: SourceScan, writer: SstWriter): Unit = {
    var done = false
    try {
      while (rows.key != null && writer.hasRoom) {
        val value = rows.value
        writer.put(rows.key, 0, rows.key.length, value, 0, value.length)
        rows.next()
      }
      writer.finish()
      done = true
    } finally if (!done) writer.abandon()
  }

  def close(): Unit = {
    tier.close()
    LocalDirs.delete(tier.dir)
  }
}
