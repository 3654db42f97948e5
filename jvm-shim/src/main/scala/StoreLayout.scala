package org.apache.spark.sql.millpond

import com.fasterxml.jackson.databind.node.ObjectNode

/** Where the store's rows belong: key groups, slots, and the folder for files that are being written. */
final class StoreLayout(val groups: KeyGroups, val partitions: Int, val partition: Int,
    val stagingDir: String, unscalable: Option[String]) {
  private var reason: String = unscalable.orNull
  /** Whether keys carry the slot of their group; a store without a known partition key keeps all in slot 0. */
  private val slotted: Boolean = unscalable.isEmpty
  /** The slot of keys whose group cannot be told: all of them, or -1 for any. */
  val unknownSlot: Int = if (slotted) -1 else 0

  /** How many key groups the partition owns, and which of them, counted from 0, a slot belongs to. */
  val groupCount: Int = groups.maxParallelism / partitions
  def ordinal(slot: Int): Int = groups.group(slot) / partitions

  def scalable: Boolean = reason == null
  def unscalableReason: String = if (reason == null) "" else reason

  /** Marks the store as one that had a key in the wrong place already when it was written. */
  def mark(why: String): Unit = if (reason == null && why.nonEmpty) reason = why

  /** The slot of a key group. */
  def slot(group: Int): Int = if (!slotted || group < 0) 0 else groups.slot(group)

  /** The slot of a key group, which must be one of this partition's: else the store is marked, since a rescale would tear it apart. */
  def checkedSlot(group: Int): Int = {
    if (slotted && group >= 0 && group % partitions != partition && reason == null)
      reason =
        s"a key of key group $group is in partition $partition of $partitions: Spark did not place it by the key that Millpond assumes"
    slot(group)
  }

  def describe(target: ObjectNode): Unit = {
    target.put("max_parallelism", groups.maxParallelism).put("base", groups.base).put("partitions",
      partitions)
      .put("scalable", scalable).put("reason", unscalableReason)
    ()
  }
}

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
