package org.apache.spark.sql.millpond

import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/** What part of the disk tier a scan reads: the rows of one family, all or those with a prefix. Keys are slot-major, so a family is one
  * run per slot. */
private[millpond] final class DiskRange(family: Int, prefix: Array[Byte], slot: Int) {

  private def at(slot: Int): Array[Byte] = {
    val key = new Array[Byte](4 + prefix.length)
    key(0) = (slot >>> 8).toByte
    key(1) = slot.toByte
    key(2) = (family >>> 8).toByte
    key(3) = family.toByte
    System.arraycopy(prefix, 0, key, 4, prefix.length)
    key
  }

  def seekFirst(scan: DiskScan): Unit = scan.seek(at(math.max(0, slot)))

  /** Bring the scan to the next row of the range at or after its place; null at the end. */
  def settle(scan: DiskScan): Array[Byte] = {
    while (scan.isValid) {
      val key = scan.key
      val keySlot = ((key(0) & 0xFF) << 8) | (key(1) & 0xFF)
      if (slot >= 0 && keySlot != slot) return null
      val order = java.util.Arrays.compareUnsigned(key, 2, math.min(key.length, 4 + prefix.length), at(keySlot), 2, 4 + prefix.length)
      if (order == 0) return key
      else if (order < 0) scan.seek(at(keySlot))
      else if (slot >= 0 || keySlot == 0xFFFF) return null
      else scan.seek(at(keySlot + 1))
    }
    null
  }
}

private[millpond] object DiskRange {
  private val Nothing = new Array[Byte](0)
  def whole(f: Family): DiskRange = new DiskRange(f.id, Nothing, -1)
  /** @param slot of all keys with the prefix, -1 if they may lie in several */
  def prefix(f: Family, prefix: Array[Byte], slot: Int): DiskRange = new DiskRange(f.id, prefix, slot)
}

/** An iterator over what a family held when it was made: first the records that memory had, then what only the disk has.
  * Pairs are fresh objects. Closed by exhaustion, by `close`, or by the end of the batch. */
private[millpond] final class Scan(engine: StoreEngine, f: Family, records: Array[Long], epoch: Int, disk: DiskScan, range: DiskRange)
    extends Iterator[UnsafeRowPair] with AutoCloseable {
  private val table = f.table
  private var i = 0
  private var onDisk = false
  private var ahead: UnsafeRowPair = null
  private var finished = false
  private var closed = false

  override def hasNext: Boolean = {
    if (ahead == null && !finished) {
      engine.synchronized {
        if (closed) throw MillpondError.of("STORE_CLOSED", s"an iterator over store ${engine.context.label} was used after the end of its batch.")
        ahead = advance()
        if (ahead == null) { finished = true; close() }
      }
    }
    ahead != null
  }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("end of state store iterator")
    val pair = ahead
    ahead = null
    pair
  }

  private def advance(): UnsafeRowPair = {
    while (i < records.length) {
      val record = records(i)
      i += 1
      if (table.isPresent(record))
        return new UnsafeRowPair(f.rows.decodeKey(table.keyAddress(record), table.keyLength(record)),
          f.rows.decodeValue(table.valueAddress(record), table.valueLength(record)))
    }
    if (disk == null) null
    else
      try advanceOnDisk()
      catch { case e: MillpondException => throw engine.distrust(e) }
  }

  private def advanceOnDisk(): UnsafeRowPair = {
    if (onDisk) disk.next() else { range.seekFirst(disk); onDisk = true }
    var key = range.settle(disk)
    while (key != null) {
      val lead = 4 + f.keyLead
      val length = key.length - lead
      val at = Bytes.ArrayOffset + lead.toLong
      val record = table.find(key, at, length, Bytes.hash(key, at, length))
      // a key that memory had when the scan began was answered from there; one that came later is new to the scan
      if (record == 0L || table.birth(record) > epoch) return new UnsafeRowPair(f.rows.decodeKey(key, lead), f.rows.decodeValue(disk.value, 1))
      disk.next()
      key = range.settle(disk)
    }
    null
  }

  override def close(): Unit = engine.synchronized {
    if (!closed) {
      closed = true
      table.endScan()
      if (disk != null) disk.close()
      engine.forget(this)
    }
  }
}
