package org.apache.spark.sql.millpond.engine

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.millpond.disk.{DiskCursor, KeyRange}
import org.apache.spark.sql.millpond.memory.{Bytes, RecordCursor}
import org.apache.spark.sql.millpond.rows.{Family, FamilyKind}

/** Opens the scans of a store, and knows those that are open. Callers hold the engine's monitor, or
  * the call takes it; only `readsAll` needs none. */
private[millpond] final class Scans(engine: StoreEngine) {
  private val open = mutable.HashSet.empty[Scan]
  @volatile private var readingAll = 0

  /** All rows of a family.
    *
    * @param each one pair per value
    * @param grouped rows of one prefix come one after the other, as Spark's state reader wants
    * them; nothing is written meanwhile */
  def all(session: Session, f: Family, each: Boolean, grouped: Boolean = false): Scan =
    engine.synchronized {
      engine.checkUsable(session)
      val table = f.table
      if (grouped && f.kind == FamilyKind.Prefix)
        begin(session, f, KeyRange.Whole, -1, each, ordered = true)(
          if (table.complete) table.byPrefix() else table.inDiskOrder())
      else
        begin(session, f, KeyRange.Whole, if (f.kind.crossKey) FamilyKind.ReservedSlot else -1,
          each)(table.all())
    }

  /** The rows whose leading key columns are `prefix`.
    * @param mark the scan ends with `endMarked` of it, unless it ends before; null: none */
  def ofPrefix(session: Session, f: Family, prefix: UnsafeRow, each: Boolean,
      mark: AnyRef = null): Scan =
    engine.synchronized {
      engine.checkUsable(session)
      val rows = f.rows
      rows.encodePrefix(prefix)
      val range = KeyRange(prefix = rows.keyCopy())
      val slot = if (f.kind.crossKey) FamilyKind.ReservedSlot
      else rows.partitionKey.groupOfPrefix(prefix) match {
        case -1 => engine.layout.unknownSlot
        case g => engine.layout.slot(g)
      }
      begin(session, f, range, slot, each, mark = mark) {
        val length = range.prefix.length
        if (f.table.isSorted) f.table.from(range.prefix, Bytes.ArrayOffset, length)
        else f.table.withPrefix(range.prefix, Bytes.ArrayOffset, length)
      }
    }

  /** The rows with encoded keys in `[start, end)`; sorted families only. */
  def inRange(session: Session, f: Family, start: Option[UnsafeRow], end: Option[UnsafeRow],
      each: Boolean): Scan = engine.synchronized {
    engine.checkUsable(session)
    val range =
      KeyRange(from = start.map(f.rows.keyOf).orNull, until = end.map(f.rows.keyOf).orNull)
    val slot = if (f.kind.crossKey) FamilyKind.ReservedSlot
    // between two keys lie others, of any slot
    else if (range.isOfOneKey(FamilyKind.TimeBytes)) engine.rows.slotOf(f, start.get)
    else -1
    begin(session, f, range, slot, each)(f.table.from(range.start, Bytes.ArrayOffset,
        range.start.length))
  }

  /** The rows from the first key at or behind these ordering columns to the end of the family.
    * Range families only. */
  def from(session: Session, f: Family, prefix: UnsafeRow): Scan = engine.synchronized {
    engine.checkUsable(session)
    f.rows.encodePrefix(prefix)
    val range = KeyRange(from = f.rows.keyCopy())
    begin(session, f, range, FamilyKind.ReservedSlot, each = false)(f.table.from(range.start,
        Bytes.ArrayOffset, range.start.length))
  }

  /** @param records what memory has of the range; ordered as `Scan` says */
  private def begin(session: Session, f: Family, range: KeyRange, slot: Int, each: Boolean,
      ordered: Boolean = false, mark: AnyRef = null)(records: => RecordCursor): Scan = {
    val epoch = f.table.beginScan()
    try {
      val ofMemory = records
      val all = range eq KeyRange.Whole
      val ofDisk = if (f.table.complete) null
      else {
        // the next one will be faster
        if (all && engine.disk.lookup.isWantedByScans) engine.lookupFill.wanted()
        new DiskCursor(engine.diskRows(readAhead = all), f, slot, range)
      }
      val scan = new Scan(engine, session, f, ofMemory, epoch, ofDisk,
        ordered || (f.table.isSorted && slot >= 0), range, each, mark)
      add(scan)
      scan
    } catch { case e: Throwable => f.table.endScan(); throw e }
  }

  private def add(scan: Scan): Unit = {
    check()
    open += scan
    if (scan.readsAllFromDisk) readingAll += 1
  }

  def remove(scan: Scan): Unit = {
    check()
    if (open.remove(scan) && scan.readsAllFromDisk) readingAll -= 1
  }

  def closeAll(): Unit = {
    check()
    open.toArray.foreach(_.close())
  }

  def nonEmpty: Boolean = open.nonEmpty

  /** Nobody reads on with the scans of the session that have this mark. Callers need no lock. */
  def endMarked(session: Session, mark: AnyRef): Unit = engine.synchronized {
    if (open.nonEmpty) open.filter(_.hasMark(session, mark)).foreach(_.close())
  }

  /** Whether a scan reads all rows of the disk now. Any thread may ask. */
  def readsAll: Boolean = readingAll > 0

  private def check(): Unit = assert(Thread.holdsLock(engine), "without the store's monitor")
}
