package org.apache.spark.sql.millpond.rows

import org.apache.spark.sql.millpond.base.RowLimit
import org.apache.spark.sql.millpond.memory.Bytes

/** A reusable physical key. */
private[millpond] final class GrowingKey {
  var bytes = new Array[Byte](128)
  var length = 0

  /** @param groupSlot of the key's group */
  def set(groupSlot: Int, f: Family, base: AnyRef, offset: Long, keyLength: Int): Unit = {
    val shape = f.shape
    length = shape.keyExtra + keyLength
    if (bytes.length < length) bytes = new Array[Byte](RowLimit.bufferFor(length))
    val slot = if (shape.keyTrail == 0) groupSlot else FamilyKind.ReservedSlot
    bytes(0) = (slot >>> 8).toByte
    bytes(1) = slot.toByte
    bytes(2) = (f.id >>> 8).toByte
    bytes(3) = f.id.toByte
    if (shape.keyLead == 1) bytes(4) = 0
    Bytes.copy(base, offset, bytes, Bytes.ArrayOffset + 4L + shape.keyLead, keyLength)
    if (shape.keyTrail == 2) {
      bytes(length - 2) = (groupSlot >>> 8).toByte
      bytes(length - 1) = groupSlot.toByte
    }
  }
}
