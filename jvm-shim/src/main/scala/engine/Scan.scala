package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException}
import org.apache.spark.sql.millpond.disk.{DiskCursor, KeyRange}
import org.apache.spark.sql.millpond.memory.{Bytes, RecordCursor}
import org.apache.spark.sql.millpond.rows.{Family, FamilyCodec}

/** Iterates over the rows that a family held when the scan began, in memory and on disk. If
  * `ordered`, `records` come in the order of the disk tier, slot by slot, and so does the scan.
  * Else rows of memory come first, then rows that only the disk has. Pairs are fresh objects. The
  * scan closes at its end, by `close`, or when the batch ends.
  *
  * @param disk null if memory has all
  * @param each one pair per value of a key with several
  * @param mark what `Scans.endMarked` ends it by; null: nothing */
private[millpond] final class Scan(engine: StoreEngine, session: Session,
    f: Family, records: RecordCursor, epoch: Int, disk: DiskCursor, ordered: Boolean,
    range: KeyRange,
    each: Boolean, mark: AnyRef) extends Iterator[UnsafeRowPair] with AutoCloseable {
  /** Whether the scan reads all rows of the disk tier. */
  val readsAllFromDisk: Boolean = disk != null && (range eq KeyRange.Whole)
  private val table = f.table
  // where the key, as memory has it, begins in a physical one
  private val keyAt = Bytes.ArrayOffset + 4L + f.keyLead
  private var record = 0L // next record of memory, 0 if to be fetched
  private var memoryDone = false
  private var diskKey: Array[Byte] = null // next key of the disk, null if to be fetched
  private var diskDone = disk == null
  // rows that one lock fetched; those from `at` until `count` were not returned yet
  private var ahead = new Array[UnsafeRowPair](2)
  private var at = 0
  private var count = 0
  private var aheadBytes = 0L
  private var values: Iterator[UnsafeRow] = Iterator.empty
  private var valuesKey: UnsafeRow = null
  private var finished = false
  private var closed = false
  private var bulk: DiskRows = null

  def hasMark(owner: Session, of: AnyRef): Boolean = (mark eq of) && (session eq owner)

  override def hasNext: Boolean =
    if (finished) at < count
    else {
      checkOpen()
      if (at == count) {
        at = 0
        count = 0
        aheadBytes = 0L
        if (values.hasNext) add(new UnsafeRowPair(valuesKey, values.next()))
        else readAhead()
      }
      at < count
    }

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("end of state store iterator")
    val pair = ahead(at)
    ahead(at) = null // whoever got it may leave it
    at += 1
    pair
  }

  private def add(pair: UnsafeRowPair): Unit = {
    ahead(count) = pair
    count += 1
    aheadBytes += pair.key.getSizeInBytes + pair.value.getSizeInBytes
  }

  private def checkOpen(): Unit =
    if (closed)
      throw MillpondError.of("STORE_CLOSED",
        s"an iterator over store ${engine.context.label} was used after the end of its batch, " +
          "or, in transformWithState, of the call that began it.",
        "Read an iterator of state in the call that gets it. If its batch ended, there is " +
          "nothing to do: Spark retries the task.")

  /** Fetch some rows under one lock, more each time. A lock costs as much as a row, but most scans
    * of a prefix are short. Large rows come one by one: the heap must hold all that are ahead. */
  private def readAhead(): Unit = engine.synchronized {
    engine.checkHeld(session)
    checkOpen()
    if (!each && ahead.length < Scan.MostAhead) ahead = new Array[UnsafeRowPair](ahead.length * 2)
    val wanted = if (each) 1 else ahead.length
    try
      while (wants(wanted) && !finished)
        if (diskDone && !each) readMemoryAhead(wanted)
        else if (memoryDone && !diskDone && !each) readDiskAhead(wanted)
        else {
          val pair = advance()
          if (pair == null) { finished = true; close() }
          else add(pair)
        }
    catch { case e: MillpondException => count = 0; throw engine.distrust(e) }
  }

  private def wants(rows: Int): Boolean = count < rows && aheadBytes < Scan.MostAheadBytes

  /** Only memory has more. */
  private def readMemoryAhead(wanted: Int): Unit = {
    fetchRecord()
    while (wants(wanted) && !memoryDone) {
      val r = take()
      if (table.isPresent(r)) add(ofMemory(r))
      fetchRecord()
    }
    if (memoryDone) { finished = true; close() }
  }

  private def advance(): UnsafeRowPair = {
    while (true) {
      fetchRecord()
      if (!memoryDone && (!ordered || diskDone)) {
        val r = take()
        if (table.isPresent(r)) return ofMemory(r)
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
            if (order == 0) diskKey = null // memory has the newer value
            val r = take()
            if (table.isPresent(r)) return ofMemory(r)
          } else { val pair = ofDisk(); if (pair != null) return pair }
        }
      }
    }
    null
  }

  /** Only the disk has more: fetch rows first, and then look all of them up in memory. One after
    * the other, each look-up would wait for its own cache miss. */
  private def readDiskAhead(wanted: Int): Unit = {
    if (bulk == null) bulk = new DiskRows(Scan.MostAhead)
    val rows = bulk
    val most = wanted - count
    var n = 0
    var bytes = aheadBytes
    while (n < most && bytes < Scan.MostAheadBytes && !diskDone) {
      fetchKey()
      if (diskKey != null) {
        val value = disk.value
        rows.keys(n) = diskKey
        rows.values(n) = value
        bytes += diskKey.length + value.length
        diskKey = null
        n += 1
      }
    }
    val looksUp = this.looksUp
    if (looksUp) {
      var i = 0
      while (i < n) {
        rows.hashes(i) = hashOf(rows.keys(i))
        rows.touched ^= table.touch(rows.hashes(i))
        i += 1
      }
    }
    var i = 0
    while (i < n) {
      val key = rows.keys(i)
      if (!looksUp || !hadWhenBegun(key, rows.hashes(i)))
        add(new UnsafeRowPair(f.rows.decodePhysical(key),
            f.rows.decodeValue(rows.values(i), f.valueLead)))
      rows.keys(i) = null
      rows.values(i) = null
      i += 1
    }
  }

  /** Whether memory may have yielded a row of the disk at another time. In order, the records of
    * the scan's begin are compared with each of them instead: that waits for no cache miss. */
  private def looksUp: Boolean = !ordered && !table.isEmpty

  private def hashOf(physical: Array[Byte]): Int =
    Bytes.hash(physical, keyAt, physical.length - f.keyExtra)

  /** Whether memory had this physical key when the scan began: then it yielded the row. */
  private def hadWhenBegun(physical: Array[Byte], hash: Int): Boolean = {
    val found = table.find(physical, keyAt, physical.length - f.keyExtra, hash)
    found != 0L && table.birth(found) <= epoch
  }

  private def fetchRecord(): Unit = if (record == 0L && !memoryDone) {
    record = records.next()
    // a prefix chain has only wanted records; a sorted table yields all from the start of the
    // range, and the first record behind the range ends the scan
    if (record != 0L && table.isSorted && (range ne KeyRange.Whole) &&
      range.endsBefore(null, table.keyAddress(record), table.keyLength(record)))
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
    if (each)
      several(key,
        f.rows.decodeValues(FamilyCodec.copyOf(table.valueAddress(r), table.valueLength(r)), 0))
    else new UnsafeRowPair(key, f.rows.decodeValue(table.valueAddress(r), table.valueLength(r)))
  }

  /** The next row of the disk; null if memory had the key when the scan began
    * and yielded it then. */
  private def ofDisk(): UnsafeRowPair = {
    val physical = diskKey
    diskKey = null
    if (looksUp && hadWhenBegun(physical, hashOf(physical))) null
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
      engine.scans.remove(this)
      table.endScan()
      if (disk != null) disk.close()
    }
  }
}

private[millpond] object Scan {
  private val MostAhead = 64
  private val MostAheadBytes = 1L << 20 // and the last row
}

/** Rows of the disk that a scan has fetched, and not yet looked up in memory. */
private final class DiskRows(most: Int) {
  val keys = new Array[Array[Byte]](most)
  val values = new Array[Array[Byte]](most)
  val hashes = new Array[Int](most)
  var touched = 0L
}
