package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException, Seams}
import org.apache.spark.sql.millpond.disk.{DiskCursor, KeyRange}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Age, Family, FamilyCodec, GrowingKey}
import org.apache.spark.unsafe.Platform

/** Reads and writes single rows of a store. Each call of a task names its session, and takes the
  * engine's monitor. A row that memory lacks comes from the disk tier. */
private[millpond] final class Rows(engine: StoreEngine) {
  private val diskKey = new GrowingKey

  def get(session: Session, f: Family, key: UnsafeRow): UnsafeRow = engine.synchronized {
    engine.checkUsable(session)
    val rows = f.rows
    rows.encodeKey(key)
    engine.metrics.lookups += 1
    val hash = Bytes.hash(rows.base, rows.offset, rows.length)
    val record = f.table.find(rows.base, rows.offset, rows.length, hash)
    if (record != 0L) {
      if (!f.table.isPresent(record)) null
      else {
        f.table.markUsed(record)
        rows.decodeValue(f.table.valueAddress(record), f.table.valueLength(record))
      }
    } else if (f.table.complete) null
    else {
      val n = readDisk(f, key)
      admit(f, n, hash, slotOf(f, key))
      if (n < 0) null
      else rows.decodeValue(java.util.Arrays.copyOfRange(engine.disk.lastValue, f.valueLead, n), 0)
    }
  }

  /** Put (a row, or all rows of a key with several values) or remove (null). */
  def write(session: Session, f: Family, key: UnsafeRow, value: AnyRef): Unit = {
    writeRow(session, f, key, value)
    makeRoom(session)
  }

  /** The row is there already. */
  private def makeRoom(session: Session): Unit =
    if (engine.budget.isExceeded) engine.wholly(session)(engine.pressure.afterWrite())

  private def writeRow(session: Session, f: Family, key: UnsafeRow, value: AnyRef): Unit =
    engine.synchronized {
      engine.checkWritable(session)
      val rows = f.rows
      rows.encodeKey(key)
      engine.metrics.lookups += 1
      val hash = Bytes.hash(rows.base, rows.offset, rows.length)
      val table = f.table
      var found = table.find(rows.base, rows.offset, rows.length, hash)
      var present = found != 0L && table.isPresent(found)
      var counted = true
      var onDisk = -1 // length of the value there
      if (found == 0L && !table.complete) {
        if (engine.exactKeys) {
          onDisk = readDisk(f, key)
          present = onDisk >= 0
          found = admit(f, onDisk, hash, slotOf(f, key))
        } else counted = false
      }
      if (value != null || present || !counted) {
        // a record of a key that is not there was never checked
        val slot = if (found == 0L || !present) checkedSlot(f, key) else table.slotOf(found)
        val prefix = if (found == 0L) f.prefixLength(rows.base, rows.offset) else 0
        if (rows.isStamping && (value == null || !counted)) engine.ages.noteEach()
        if (value == null)
          table.write(rows.base, rows.offset, rows.length, hash, found, slot, prefix, null, 0L, -1)
        else {
          encode(f, value)
          if (rows.isStamping && !(present && engine.ages.keepsNotes))
            engine.ages.wrote(slot, rows.base, rows.offset, rows.length,
              if (!present) Age.Unknown
              else if (found == 0L)
                Age.of(engine.disk.lastValue, Bytes.ArrayOffset + f.valueLead, onDisk - f.valueLead)
              else Age.of(null, table.valueAddress(found), table.valueLength(found)))
          table.write(rows.base, rows.offset, rows.length, hash, found, slot, prefix,
            rows.valueBase, rows.valueOffset, rows.valueLength, tail = rows.age)
        }
        count(f, present, value != null, counted, slot)
        engine.batchLog.afterWrite(f)
      }
    }

  /** Encode a value: a row, or the list of all values of a key with several. */
  private def encode(f: Family, value: AnyRef): Unit = value match {
    case row: UnsafeRow => f.rows.encodeValue(row)
    case list: Array[UnsafeRow] => f.rows.encodeList(list.toIndexedSeq: _*)
    case other => throw MillpondError.internal(s"a value of ${other.getClass}")
  }

  private def count(f: Family, before: Boolean, after: Boolean, known: Boolean, slot: Int): Unit =
    if (!f.shape.internal) {
      if (known) engine.batch.count(slot, before, after)
      else engine.batch.loseCount(engine.layout)
    }

  /** Append to the values of a key with several; the key need not exist. */
  def merge(session: Session, f: Family, key: UnsafeRow, added: Array[UnsafeRow]): Unit = {
    mergeRows(session, f, key, added)
    makeRoom(session)
  }

  private def mergeRows(
      session: Session, f: Family, key: UnsafeRow, added: Array[UnsafeRow]): Unit =
    engine.synchronized {
      engine.checkWritable(session)
      val rows = f.rows
      rows.encodeKey(key)
      engine.metrics.lookups += 1
      val hash = Bytes.hash(rows.base, rows.offset, rows.length)
      var found = f.table.find(rows.base, rows.offset, rows.length, hash)
      // read the whole list into memory, even beyond the budget: without it no abort could
      // take the append back
      if (found == 0L && !f.table.complete)
        found = admitAnyway(f, readDisk(f, key), hash, slotOf(f, key))
      val present = found != 0L && f.table.isPresent(found)
      rows.encodeList(added.toIndexedSeq: _*)
      if (present) {
        rows.checkSize(f.table.valueLength(found).toLong + rows.valueLength)
        f.table.append(found, rows.valueBase, rows.valueOffset, rows.valueLength)
      } else {
        val slot = checkedSlot(f, key)
        f.table.write(
          rows.base,
          rows.offset,
          rows.length,
          hash,
          found,
          slot,
          f.prefixLength(rows.base, rows.offset),
          rows.valueBase,
          rows.valueOffset,
          rows.valueLength,
          appended = true
        )
        count(f, before = false, after = true, known = true, slot)
      }
      engine.batchLog.afterWrite(f)
    }

  /** Replay a merge record of a changelog: append to the list that the versions before left. */
  def replayMerge(f: Family, slot: Int, block: Array[Byte], keyOffset: Long,
      keyLength: Int, hash: Int, record: Long, valueAt: Int, valueLength: Int): Unit = {
    var found = record
    if (found == 0L && !f.table.complete) {
      diskKey.set(slot, f, block, keyOffset, keyLength)
      val n = engine.disk.get(diskKey.bytes, diskKey.length)
      if (n >= 0)
        found =
          f.table.admit(block, keyOffset, keyLength, hash, slot, f.prefixLength(block, keyOffset),
            engine.disk.lastValue, Bytes.ArrayOffset + f.valueLead, n - f.valueLead, 0)
    }
    if (found != 0L && f.table.isPresent(found))
      f.table.append(found, block, Bytes.ArrayOffset + valueAt, valueLength)
    else
      f.table.write(block, keyOffset, keyLength, hash, found, slot,
        f.prefixLength(block, keyOffset), block, Bytes.ArrayOffset + valueAt, valueLength)
  }

  /** All values of a key, as they are now. A later write or remove does not change the iterator.
    * @param most null, if the key has more: nothing is copied then */
  def values(session: Session, f: Family, key: UnsafeRow, most: ListLimit = ListLimit.No)
      : Iterator[UnsafeRow] =
    engine.synchronized {
      engine.checkUsable(session)
      val rows = f.rows
      rows.encodeKey(key)
      engine.metrics.lookups += 1
      val hash = Bytes.hash(rows.base, rows.offset, rows.length)
      val record = f.table.find(rows.base, rows.offset, rows.length, hash)
      if (record != 0L) {
        val (address, length) = (f.table.valueAddress(record), f.table.valueLength(record))
        if (!f.table.isPresent(record)) Iterator.empty
        else if (most.excludes(null, address, length)) null
        else rows.decodeValues(FamilyCodec.copyOf(address, length), 0)
      } else if (f.table.complete) Iterator.empty
      else {
        val n = readDisk(f, key)
        admit(f, n, hash, slotOf(f, key))
        if (n < 0) Iterator.empty
        else if (most.excludes(engine.disk.lastValue, Bytes.ArrayOffset, n)) null
        else rows.decodeValues(java.util.Arrays.copyOf(engine.disk.lastValue, n), 0)
      }
    }

  /** The slot of a key that is new to the store. Marks the store if Spark did not place the
    * key by its key group. */
  private def checkedSlot(f: Family, key: UnsafeRow): Int =
    engine.layout.checkedSlot(key, f.rows.partitionKey, f.name)

  def slotOf(f: Family, key: UnsafeRow): Int =
    engine.layout.slot(f.rows.partitionKey.group(key))

  /** Length of the value on disk (with its version byte), or -1. The codec holds
    * the encoded key. */
  private def readDisk(f: Family, key: UnsafeRow): Int = {
    diskKey.set(slotOf(f, key), f, f.rows.base, f.rows.offset, f.rows.length)
    val disk = engine.disk
    if (disk.lookup.lacks(diskKey.bytes, diskKey.length)) -1
    else {
      if (disk.lookup.isWanted) engine.lookupFill.wanted()
      try {
        val n = disk.get(diskKey.bytes, diskKey.length)
        if (disk.hasReadDisk) engine.metrics.diskReads += 1
        n
      } catch { case e: MillpondException => throw engine.distrust(e) }
    }
  }

  /** Keep the disk's answer about the encoded key in memory, if the budget allows. That a key is
    * not there the tier's lookup tells again at once. */
  private def admit(f: Family, valueLength: Int, hash: Int, slot: Int): Long =
    if ((valueLength >= 0 || !engine.disk.lookup.isReady) && engine.pressure.admits())
      admitAnyway(f, valueLength, hash, slot)
    else 0L

  private def admitAnyway(f: Family, valueLength: Int, hash: Int, slot: Int): Long = {
    val rows = f.rows
    f.table.admit(
      rows.base,
      rows.offset,
      rows.length,
      hash,
      slot,
      f.prefixLength(rows.base, rows.offset),
      engine.disk.lastValue,
      Bytes.ArrayOffset + f.valueLead,
      if (valueLength < 0) -1 else valueLength - f.valueLead,
      0
    )
  }

  /** Delete all rows of a family; those of the disk tier some at a time: the batch may have no room
    * for so many deletes, and moves them to disk. Meanwhile the warm-up may bring rows into memory.
    * Callers hold no lock. */
  def erase(session: Session, f: Family): Unit = engine.wholly(session) {
    var last = engine.synchronized {
      engine.checkWritable(session)
      val complete = f.table.complete
      eraseMemory(f)
      if (complete) null else eraseDisk(f, null)
    }
    while (last != null) {
      if (engine.budget.isExceeded) engine.pressure.afterWrite()
      last = engine.synchronized {
        engine.checkWritable(session)
        eraseDisk(f, last)
      }
    }
  }

  /** Delete the rows with encoded keys in `[start, end)`; sorted families only. Callers hold no
    * lock. */
  def eraseRange(session: Session, f: Family, start: UnsafeRow, end: UnsafeRow): Unit = {
    val rows = engine.scans.inRange(session, f, Some(start), Some(end), each = false)
    engine.wholly(session)(while (rows.hasNext) write(session, f, rows.next().key, null))
  }

  private def eraseMemory(f: Family): Unit = {
    val table = f.table
    table.beginScan()
    try {
      val records = table.all()
      var record = records.next()
      while (record != 0L) {
        if (table.isPresent(record)) {
          val key = table.keyAddress(record)
          val length = table.keyLength(record)
          eraseRow(f, null, key, length, Bytes.hash(null, key, length), record,
            table.slotOf(record))
        }
        record = records.next()
      }
    } finally table.endScan()
  }

  /** @param behind the key of the disk tier with which the call before ended; null: it is the first
    * @return the key with which this one ended; null: there are no more */
  private def eraseDisk(f: Family, behind: Array[Byte]): Array[Byte] = {
    val cursor =
      new DiskCursor(engine.diskRows(readAhead = true), f, -1, KeyRange.Whole, behind)
    try {
      var left = Seams.stretch("erase.rows", Rows.ErasedTogether)
      var last: Array[Byte] = null
      var key = cursor.next()
      while (key != null && left > 0) {
        val at = Bytes.ArrayOffset + 4L + f.keyLead
        val length = key.length - f.keyExtra
        val hash = Bytes.hash(key, at, length)
        val found = f.table.find(key, at, length, hash)
        if (found == 0L || f.table.isPresent(found))
          eraseRow(f, key, at, length, hash, found, f.shape.slotIn(key, 0, key.length))
        left -= 1
        last = key
        key = cursor.next()
      }
      if (key == null) null else last
    } catch { case e: MillpondException => throw engine.distrust(e) }
    finally cursor.close()
  }

  private def eraseRow(f: Family, base: AnyRef, offset: Long, length: Int, hash: Int, found: Long,
      slot: Int): Unit = {
    f.table.write(base, offset, length, hash, found, slot, f.prefixLength(base, offset), null, 0L,
      -1)
    count(f, before = true, after = false, known = true, slot)
    engine.batchLog.afterWrite(f)
  }
}

/** How many values of a key, and bytes of them, somebody wants to read. */
private[millpond] final case class ListLimit(values: Int, bytes: Int) {
  /** Whether an encoded list has more. */
  def excludes(base: AnyRef, offset: Long, length: Int): Boolean =
    length > bytes || values < Int.MaxValue && {
      var (at, left) = (0, values)
      while (at < length && left >= 0) {
        at += 4 + Platform.getInt(base, offset + at)
        left -= 1
      }
      left < 0
    }
}

private[millpond] object ListLimit {
  val No: ListLimit = ListLimit(Int.MaxValue, Int.MaxValue)
}

private object Rows {
  // of the disk tier, under one lock
  private val ErasedTogether = 16384L
}
