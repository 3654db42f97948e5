package org.apache.spark.sql.millpond

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/** Which keys of a family a scan wants, in terms of encoded keys: those that begin with `prefix`, are at or above `from` and below `until`
  * (each null if unbounded). */
private[millpond] final case class KeyRange(prefix: Array[Byte] = null, from: Array[Byte] = null,
    until: Array[Byte] = null) {
  /** Where a scan in key order begins. */
  def start: Array[Byte] =
    if (prefix != null) prefix else if (from != null) from else KeyRange.Nothing

  /** -1 before the range, 0 in it, 1 behind it. */
  def side(key: Array[Byte], at: Int): Int =
    if (prefix != null) {
      val length = key.length - at
      val order = java.util.Arrays.compareUnsigned(key, at, at + math.min(length, prefix.length),
        prefix, 0, prefix.length)
      if (order < 0) -1 else if (order > 0) 1 else 0
    } else if (from != null && java.util.Arrays.compareUnsigned(key, at, key.length, from, 0,
        from.length) < 0) -1
    else if (until != null && java.util.Arrays.compareUnsigned(key, at, key.length, until, 0,
        until.length) >= 0) 1
    else 0
}

private[millpond] object KeyRange {
  val Nothing = new Array[Byte](0)
  val Whole: KeyRange = KeyRange()
}

/** Walks the rows of one family in the disk tier. Keys are slot-major there, so a family is one run per slot.
  *
  * @param slot the only slot that leads rows of the range, -1 if there may be several */
private[millpond] final class DiskCursor(scan: DiskScan, f: Family, slot: Int, range: KeyRange) {
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
    if (begun) scan.next() else { begun = true; scan.seek(target(math.max(0, slot))) }
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

/** An iterator over what a family held when it was made, memory and disk as one. If `ordered`, `records` are in the order of the disk tier,
  * slot by slot, and so is the scan; else first what memory had, then what only the disk has. Pairs are fresh objects. Closed by exhaustion,
  * by `close`, or by the end of the batch.
  *
  * @param disk null if memory has all
  * @param each one pair per value of a key with several */
private[millpond] final class Scan(engine: StoreEngine, session: MillpondStateStoreProvider.Session,
    f: Family, records: RecordCursor, epoch: Int, disk: DiskCursor, ordered: Boolean,
    range: KeyRange,
    each: Boolean) extends Iterator[UnsafeRowPair] with AutoCloseable {
  /** Whether it goes through all rows of the disk tier. */
  val readsAllFromDisk: Boolean = disk != null && (range eq KeyRange.Whole)
  private val table = f.table
  private var record = 0L // next record of memory, 0 if to be fetched
  private var memoryDone = false
  private var diskKey: Array[Byte] = null // next key of the disk, null if to be fetched
  private var diskDone = disk == null
  private var ahead =
    new Array[UnsafeRowPair](
      2) // rows that were read together, `at` until `count` not yet given out
  private var at = 0
  private var count = 0
  private var values: Iterator[UnsafeRow] = Iterator.empty
  private var valuesKey: UnsafeRow = null
  private var finished = false
  private var closed = false

  override def hasNext: Boolean =
    if (finished) at < count
    else {
      checkOpen()
      if (at == count) {
        at = 0
        count = 0
        if (values.hasNext) { ahead(0) = new UnsafeRowPair(valuesKey, values.next()); count = 1 }
        else readAhead()
      }
      at < count
    }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("end of state store iterator")
    at += 1
    ahead(at - 1)
  }

  private def checkOpen(): Unit =
    if (closed) throw MillpondError.of("STORE_CLOSED",
      s"an iterator over store ${engine.context.label} was used after the end of its batch.")

  /** Some rows at once, more each time: locks and calls cost as much as a row, but most scans of a prefix are short. */
  private def readAhead(): Unit = engine.synchronized {
    engine.checkHeld(session)
    checkOpen()
    if (!each && ahead.length < Scan.MostAhead) ahead = new Array[UnsafeRowPair](ahead.length * 2)
    val wanted = if (each) 1 else ahead.length
    try
      while (count < wanted && !finished) {
        val pair = advance()
        if (pair == null) { finished = true; close() }
        else { ahead(count) = pair; count += 1 }
      }
    catch { case e: MillpondException => count = 0; throw engine.distrust(e) }
  }

  private def advance(): UnsafeRowPair = {
    while (true) {
      fetchRecord()
      if (!memoryDone && (!ordered || diskDone)) {
        val r = take(); if (table.isPresent(r)) return ofMemory(r)
      } else {
        if (!diskDone) fetchKey()
        if (memoryDone && diskDone) return null
        else if (memoryDone) { val pair = ofDisk(); if (pair != null) return pair }
        else if (!diskDone) {
          val bySlot = if (f.kind.crossKey) 0
          else Integer.compare(table.slotOf(record), f.shape.slotIn(diskKey, 0, diskKey.length))
          val order = if (bySlot != 0) bySlot
          else table.compareKey(record, diskKey, Bytes.ArrayOffset + 4L + f.keyLead,
            diskKey.length - f.keyExtra)
          if (order <= 0) {
            if (order == 0) diskKey = null // memory knows better
            val r = take()
            if (table.isPresent(r)) return ofMemory(r)
          } else { val pair = ofDisk(); if (pair != null) return pair }
        }
      }
    }
    null
  }

  private def fetchRecord(): Unit = if (record == 0L && !memoryDone) {
    record = records.next()
    // the records of a prefix chain are exactly those wanted; a sorted table yields all from the start of the range: what is behind ends the scan
    if (record != 0L && table.isSorted && (range ne KeyRange.Whole) &&
      range.side(FamilyCodec.copyOf(table.keyAddress(record), table.keyLength(record)), 0) > 0)
      record = 0L
    if (record == 0L) memoryDone = true
  }

  private def take(): Long = { val r = record; record = 0L; r }

  private def fetchKey(): Unit = if (diskKey == null) {
    diskKey = disk.next()
    if (diskKey == null) diskDone = true
  }

  private def ofMemory(r: Long): UnsafeRowPair = {
    val key = f.rows.decodeKey(table.keyAddress(r), table.keyLength(r))
    if (each) several(key,
      f.rows.decodeValues(FamilyCodec.copyOf(table.valueAddress(r), table.valueLength(r)), 0))
    else new UnsafeRowPair(key, f.rows.decodeValue(table.valueAddress(r), table.valueLength(r)))
  }

  /** Null if memory had the key when the scan began: it was answered from there. A key that came later is new to the scan. */
  private def ofDisk(): UnsafeRowPair = {
    val physical = diskKey
    diskKey = null
    val at = Bytes.ArrayOffset + 4L + f.keyLead
    val length = physical.length - f.keyExtra
    val found =
      if (table.isEmpty) 0L else table.find(physical, at, length, Bytes.hash(physical, at, length))
    if (found != 0L && table.birth(found) <= epoch) null
    else {
      val key = f.rows.decodePhysical(physical)
      if (each) several(key, f.rows.decodeValues(disk.value, 0))
      else new UnsafeRowPair(key, f.rows.decodeValue(disk.value, f.valueLead))
    }
  }

  private def several(key: UnsafeRow, all: Iterator[UnsafeRow]): UnsafeRowPair = {
    valuesKey = key
    values = all
    new UnsafeRowPair(key, values.next())
  }

  override def close(): Unit = engine.synchronized {
    if (!closed) {
      closed = true
      engine.forget(this)
      table.endScan()
      if (disk != null) disk.close()
    }
  }
}

private[millpond] object Scan {
  private val MostAhead = 64
}
