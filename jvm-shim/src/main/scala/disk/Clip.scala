package org.apache.spark.sql.millpond.disk

import org.apache.spark.sql.millpond.rows.{FamilyKind, FamilyOwnership, OwnedSlots}

/** Deletes the rows that a disk tier does not own. Where slots lead the keys it deletes ranges;
  * where slots end them, single rows. */
private[disk] final class Clip(disk: DiskTier, families: FamilyOwnership, owned: OwnedSlots) {
  def run(): Unit = {
    val reserved = FamilyKind.ReservedSlot
    val ranges = owned.gaps(reserved).map { case (from, until) =>
      slot(from) -> slot(until)
    } ++
      (if (owned.contains(reserved)) Nil else families.leading.map(f => family(f) -> family(f + 1)))
    disk.deleteRanges(ranges)
    families.trailing.foreach { id =>
      val rows = disk.iterator(readAhead = true)
      try disk.deleteRows(foreign(rows, id))
      finally rows.close()
    }
  }

  private def slot(number: Int): Array[Byte] = Array((number >>> 8).toByte, number.toByte)
  private def family(id: Int): Array[Byte] =
    if (id > 0xFFFF) Array(-1, -1, -1, -1, 0) else Array(-1, -1, (id >>> 8).toByte, id.toByte)

  private def foreign(rows: DiskScan, id: Int): Iterator[Array[Byte]] = new Iterator[Array[Byte]] {
    rows.seek(family(id))
    private var ahead = advance()

    private def advance(): Array[Byte] = {
      while (rows.isValid) {
        val key = rows.key
        val isOurs = FamilyOwnership.lead(key, 0) == FamilyKind.ReservedSlot
        if (!isOurs || FamilyOwnership.family(key, 0) != id) return null
        rows.next()
        if (!families.owns(owned, key, 0, key.length)) return key
      }
      null
    }
    override def hasNext: Boolean = ahead != null
    override def next(): Array[Byte] = { val key = ahead; ahead = advance(); key }
  }
}
