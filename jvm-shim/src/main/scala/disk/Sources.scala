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

  /** Copy the rows into a sorted file of `target`'s format. False, and no file,
    * if there are none. */
  def copyTo(target: DiskTier, file: File): Boolean = {
    val rows = scan(readAhead = true)
    try copy(rows, target.sstWriter(file))
    finally rows.close()
  }

  private def copy(rows: SourceScan, writer: SstWriter): Boolean = {
    var done = false
    try {
      rows.seek(Array[Byte](0, 0))
      while (rows.key != null) {
        val value = rows.value
        writer.put(rows.key, 0, rows.key.length, value, 0, value.length)
        rows.next()
      }
      if (writer.entries > 0) { writer.finish(); done = true }
    } finally if (!done) writer.abandon()
    done
  }

  def close(): Unit = {
    tier.close()
    LocalDirs.delete(tier.dir)
  }
}
