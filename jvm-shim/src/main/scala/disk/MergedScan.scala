package org.apache.spark.sql.millpond.disk

import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.rows.FamilyOwnership

/** The wanted rows of a source. */
private[disk] final class SourceScan(source: TierSource, rows: DiskScan) {
  /** The current key, null at the end. */
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

/** Merges the rows of a tier and of its sources, in key order. No key is in two sources. The tier
  * may have rows of a source too, if it has taken in only some of the copies. */
private[disk] final class MergedScan(own: DiskScan, sources: Array[SourceScan]) extends DiskScan {
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
      if (order == 0) passOwn() // the tier's copy of the same row
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
