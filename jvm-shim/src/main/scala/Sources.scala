package org.apache.spark.sql.millpond

import java.io.File
import java.nio.ByteBuffer

/** A part of the disk tier that a rescale left in the database of another old partition: the rows of some slots, which the tier itself has
  * not yet. Nothing is written there. */
private[millpond] final class TierSource(val tier: DiskTier, owned: OwnedSlots,
    families: FamilyOwnership) {
  def owns(key: Array[Byte], length: Int): Boolean = families.owns(owned, key, 0, length)

  /** The slot at or behind `slot` where rows may lie that are wanted. */
  def slotFrom(slot: Int): Int = if (slot >= FamilyKind.ReservedSlot || owned.contains(slot)) slot
  else math.min(owned.above(slot), FamilyKind.ReservedSlot)

  def scan(readAhead: Boolean): SourceScan = new SourceScan(this, tier.iterator(readAhead))

  /** Copy the rows into a sorted file of `target`'s format; false if there are none, then no file either. */
  def copyTo(target: DiskTier, file: File, giveWay: () => Unit): Boolean = {
    val rows = scan(readAhead = true)
    try copy(rows, target.sstWriter(file), giveWay)
    finally rows.close()
  }

  private def copy(rows: SourceScan, writer: SstWriter, giveWay: () => Unit): Boolean = {
    var done = false
    try {
      var n = 0
      rows.seek(Array[Byte](0, 0))
      while (rows.key != null) {
        val value = rows.value
        writer.put(rows.key, 0, rows.key.length, value, 0, value.length)
        rows.next()
        n += 1
        if (n % TierSource.Stretch == 0) giveWay()
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

private[millpond] object TierSource {
  private val Stretch = 1024
}

/** The wanted rows of a source. */
private[millpond] final class SourceScan(source: TierSource, rows: DiskScan) {
  /** Where it stands, null at the end. */
  var key: Array[Byte] = null

  def seek(target: Array[Byte]): Unit = { rows.seek(target); settle() }
  def next(): Unit = { rows.next(); settle() }
  def value: Array[Byte] = rows.value
  def valueInto(buffer: ByteBuffer): Int = rows.valueInto(buffer)
  def close(): Unit = rows.close()

  private def settle(): Unit = {
    key = if (rows.isValid) rows.key else null
    while (key != null && !source.owns(key, key.length)) {
      val slot = FamilyOwnership.lead(key, 0)
      val wanted = source.slotFrom(slot)
      if (wanted == slot) rows.next() else rows.seek(Array((wanted >>> 8).toByte, wanted.toByte))
      key = if (rows.isValid) rows.key else null
    }
  }
}

/** The rows of a tier and of its sources as one, in key order. No key is in two sources; the tier
  * has rows of theirs too if only some of their copies became part of it. */
private[millpond] final class MergedScan(
    own: DiskScan, sources: Array[SourceScan]) extends DiskScan {
  private var ownKey: Array[Byte] = null
  private var current = -1 // the source whose key is the least, -1: the tier's own
  private var least: Array[Byte] = null
  private var open = true

  override def seekToFirst(): Unit = seek(Array[Byte](0, 0))
  override def seek(target: Array[Byte]): Unit = {
    own.seek(target)
    ownKey = if (own.isValid) own.key else null
    sources.foreach(_.seek(target))
    choose()
  }
  override def next(): Unit = {
    if (current >= 0) sources(current).next()
    else passOwn()
    choose()
  }
  private def passOwn(): Unit = { own.next(); ownKey = if (own.isValid) own.key else null }
  private def choose(): Unit = {
    least = ownKey
    current = -1
    var i = 0
    while (i < sources.length) {
      val key = sources(i).key
      val order =
        if (key == null) 1
        else if (least == null) -1
        else java.util.Arrays.compareUnsigned(key, least)
      if (order == 0) passOwn() // its copy
      if (order <= 0) { least = key; current = i }
      i += 1
    }
  }

  override def isValid: Boolean = least != null
  override def key: Array[Byte] = least
  override def value: Array[Byte] = if (current >= 0) sources(current).value else own.value
  override def keyInto(buffer: ByteBuffer): Int = {
    buffer.put(least, 0, math.min(least.length, buffer.remaining)).flip()
    least.length
  }
  override def valueInto(buffer: ByteBuffer): Int =
    if (current >= 0) sources(current).valueInto(buffer) else own.valueInto(buffer)
  override def close(): Unit = if (open) { open = false; own.close(); sources.foreach(_.close()) }
}
