package org.apache.spark.sql.millpond.disk

import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.Family

/** Which keys of a family a scan wants, in terms of encoded keys: those that begin with `prefix`,
  * are at or above `from` and below `until` (each null if unbounded). */
private[millpond] final case class KeyRange(prefix: Array[Byte] = null, from: Array[Byte] = null,
    until: Array[Byte] = null) {
  /** Whether its two ends differ in their last bytes at most. */
  def isOfOneKey(last: Int): Boolean = from != null && until != null &&
    from.length == until.length && {
      val at = java.util.Arrays.mismatch(from, until)
      at < 0 || at >= from.length - last
    }

  /** Where a scan in key order begins. */
  def start: Array[Byte] =
    if (prefix != null) prefix else if (from != null) from else KeyRange.Nothing

  /** -1 before the range, 0 in it, 1 behind it. */
  def side(key: Array[Byte], at: Int): Int =
    if (java.util.Arrays.compareUnsigned(key, at, key.length, start, 0, start.length) < 0) -1
    else if (endsBefore(key, Bytes.ArrayOffset + at, key.length - at)) 1
    else 0

  /** Whether the range ends before a key, as it lies in an array or in memory (base null), which is
    * not before the range. */
  def endsBefore(base: AnyRef, offset: Long, length: Int): Boolean =
    if (prefix != null)
      Bytes.compare(base, offset, math.min(length, prefix.length), prefix, Bytes.ArrayOffset,
        prefix.length) > 0
    else until != null &&
    Bytes.compare(base, offset, length, until, Bytes.ArrayOffset, until.length) >= 0
}

private[millpond] object KeyRange {
  val Nothing = new Array[Byte](0)
  val Whole: KeyRange = KeyRange()
}

/** Walks the rows of one family in the disk tier. Keys are slot-major there, so a family
  * is one run per slot.
  *
  * @param slot the only slot that leads rows of the range, -1 if there may be several
  * @param behind begin behind this physical key of the family; null: at its first */
private[millpond] final class DiskCursor(scan: DiskScan, f: Family, slot: Int, range: KeyRange,
    behind: Array[Byte] = null) {
  private val lead = 4 + f.keyLead
  private var begun = false

  private def target(slot: Int): Array[Byte] = {
    val start = range.start
    val key = new Array[Byte](lead + start.length)
    key(0) = (slot >>> 8).toByte
    key(1) = slot.toByte
    key(2) = (f.id >>> 8).toByte
    key(3) = f.id.toByte
    System.arraycopy(start, 0, key, lead, start.length)
    key
  }

  /** The next physical key of the range, or null. Its value is `value` until the next call. */
  def next(): Array[Byte] = {
    if (begun) scan.next()
    else {
      begun = true
      scan.seek(if (behind == null) target(math.max(0, slot))
      else java.util.Arrays.copyOf(behind, behind.length + 1))
    }
    while (scan.isValid) {
      val key = scan.key
      val keySlot = ((key(0) & 0xFF) << 8) | (key(1) & 0xFF)
      val family = ((key(2) & 0xFF) << 8) | (key(3) & 0xFF)
      if (slot >= 0 && keySlot != slot) return null
      val side = if (family != f.id) Integer.compare(family, f.id) else range.side(key, lead)
      if (side == 0) return key
      else if (side < 0) scan.seek(target(keySlot))
      else if (slot >= 0 || keySlot == 0xFFFF) return null
      else scan.seek(target(keySlot + 1))
    }
    null
  }

  def value: Array[Byte] = scan.value
  def close(): Unit = scan.close()
}
