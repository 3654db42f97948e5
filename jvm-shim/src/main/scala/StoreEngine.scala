package org.apache.spark.sql.millpond

import java.io.File

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors
import org.apache.spark.sql.millpond.MillpondStateStoreProvider.Session

/** The state of one store at one version, and the changes of the running micro-batch: the two tiers and what leads from version to version.
  *
  * Versions: `version` is what is committed and in memory. `anchor` is the newest version that Spark proved committed by opening it for writing;
  * only versions up to the anchor go to the disk tier and into snapshots, so a version that lost (another attempt won) is never in either.
  *
  * Sessions: one at a time holds the store. Its calls carry it, and the engine compares it under the
  * monitor: a thread that lingers after its task reads nothing any more and writes into nobody's batch.
  *
  * Locks: every row operation synchronises on the engine, so that such a thread cannot harm native memory either;
  * `diskLock` (taken before the engine's monitor) keeps flushes, snapshots, reloads and close apart. `ending` (taken before both) keeps apart
  * what ends a batch, so that none is taken back while it is published. Nobody holds the monitor or `diskLock` while files go to storage or
  * come from there.
  */
final class StoreEngine(val context: StoreContext) extends Logging {
  private[millpond] val diskLock = new StoreLock
  private[millpond] val uploadLock = new StoreLock
  private val ending = new StoreLock
  private[millpond] val budget = Shared.budget(context.options)
  private[millpond] val exactKeys = context.options.boolean("numKeys.exact")
  /** Whether all state stays in memory, and the disk tier exists only while a snapshot is made. */
  @volatile private[millpond] var isHeap = false // of what was loaded
  val metrics = new StoreMetrics

  private[millpond] val families = new java.util.LinkedHashMap[String, Family]
  private[millpond] var disk: DiskTier = null
  private[millpond] var diskDir: File =
    null // where the disk tier of this generation lies, once there is one
  @volatile private[millpond] var generation = 0
  @volatile private[millpond] var loaded = false
  @volatile private[millpond] var closed = false
  private[millpond] var version = -1L
  private[millpond] var layout: StoreLayout = null
  private[millpond] var keys: KeyCount =
    null // live user-visible keys: of the running batch, or of what is committed
  private var keysAtStart: KeyCount = null
  private var keysDetached: KeyCount = null
  private[millpond] var composed =
    false // the snapshot that was loaded is one of a rescale: the next one makes it an ordinary one
  private[millpond] var lineageBase = 0L
  private[millpond] val lineage = mutable.ArrayBuffer.empty[String] // ids of lineageBase..version
  private[millpond] var pending = Vector.empty[PendingChangelog] // above the disk tier
  private[millpond] var stale =
    false // another attempt replaced what this store holds: the next open loads it from storage
  private[millpond] var flushed = 0L
  private[millpond] var flushedKeys: KeyCount = null
  private[millpond] var lastSnapshot: Option[(Long, String)] =
    None // version and id of the newest snapshot on this lineage
  private[millpond] var warmScan: WarmScan = null
  private[millpond] var anchor = 0L
  private[millpond] var anchorKeys: KeyCount = null
  private[millpond] var anchorId = ""
  private[millpond] var manifestInUse: String = null
  private[millpond] val excludedManifests =
    mutable.LinkedHashSet.empty[String] // proven damaged, as long as nothing replaces them
  private[millpond] var warming = false
  private[millpond] var emptyBase =
    false // the state before the next changelog is empty, whatever its version
  private[millpond] var emptyAt =
    -1L // that version: others still read it, with its rows, so it gets no snapshot
  private[millpond] var batchId: String = ""
  private var batchOpen = false
  private[millpond] def inBatch: Boolean = batchOpen
  private var publishing =
    false // the changelog of the batch is complete and on its way to storage: nothing is written any more
  private[millpond] def isWriting: Boolean = batchOpen && !publishing
  private def inBatch_=(open: Boolean): Unit = if (open != batchOpen) {
    batchOpen = open
    if (open) Busy.batchBegins() else Busy.batchEnds()
  }
  private[millpond] var spilledVersion =
    0L // the disk tier holds a part of this version, which need not be proven committed yet
  private var keptSnapshot: Option[Snapshots.Prepared] =
    None // made before the batch went down; `diskLock` is held
  private[millpond] var nothingToEvict = false // until the next flush
  private[millpond] val batchLog = new BatchLog(this)
  private var familiesChanged =
    false // the running batch created or removed a family: to take that back is to load again
  private var familiesDetached = false // the last version did
  private val scans = mutable.HashSet.empty[Scan]
  @volatile private var bigScans = 0
  @volatile private[millpond] var diskReads = 0L // since the last load
  private val diskKey = new GrowingKey
  budget.register()

  def id: String = lineage.lastOption.getOrElse("")
  /** Live user-visible keys; an estimate if they are not counted (`numKeys.exact`). */
  def keyCount: Long = synchronized {
    if (keys == null) 0L
    else if (keys.isKnown) keys.total
    else math.max(if (disk == null) 0L else disk.estimatedKeys,
      families.values.asScala.iterator.filter(!_.shape.internal).map(
        _.table.presentCount.toLong).sum)
  }

  /** All memory of the tables. */
  def usedBytes: Long = synchronized(total(_.usedBytes))
  /** The part of it that rows fill; the rest serves the next writes. */
  private[millpond] def liveBytes: Long = total(_.liveBytes)
  private def total(of: Table => Long): Long = {
    var sum = 0L
    families.values.forEach(f => sum += of(f.table))
    sum
  }
  /** About how much memory the rows fill that the disk tier has not. */
  private[millpond] def dirtyBytes: Long = synchronized(pending.iterator.map(_.memoryBytes).sum)

  // ---- sessions ------------------------------------------------------------------------------------------------------------------

  private var holder: Session = null

  /** From here on the calls of this session are served, and no others. */
  def enter(session: Session): Unit = synchronized { holder = session }

  /** The session gives the store back; what it had not committed is undone. Waits for a commit of the session; no lock is held. */
  def leave(session: Session): Unit = ending.during(synchronized {
    if (holder eq session)
      try undo()
      finally holder = null
  })

  /** Refuse a call of a session that has ended. The engine's monitor is held. */
  private[millpond] def checkHeld(session: Session): Unit =
    if (holder ne session) throw MillpondError.sessionEnded(context.label)

  private def checkUsable(session: Session): Unit = {
    checkHeld(session)
    if (closed || !loaded) throw MillpondError.storeClosed(context.label)
  }

  /** What is written when no batch is open would be part of the next one. */
  private def checkWritable(session: Session): Unit = {
    checkUsable(session)
    if (!isWriting) throw MillpondError.sessionEnded(context.label)
  }

  // ---- column families -----------------------------------------------------------------------------------------------------------

  private[millpond] def family(session: Session, name: String): Family = synchronized {
    checkUsable(session)
    val f = families.get(name)
    if (f == null || !f.isRegistered)
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily("access", name)
    f
  }

  def familyNames(session: Session): Set[String] = synchronized {
    checkUsable(session)
    families.values.asScala.iterator.filter(f => f.exists && !f.removed).map(_.name).toSet
  }

  /** Make a family known under an id; ids are durable (every changelog and manifest lists them). */
  private[millpond] def addFamily(
      name: String, id: Int, shape: FamilyShape, onDisk: Boolean): Family = {
    val f = new Family(name, id, shape, budget)
    if (onDisk) f.table.lack()
    families.put(name, f)
    f
  }

  /** Whether the family is part of the state, or its deletes still are. */
  private[millpond] def has(name: String): Boolean =
    synchronized { val f = families.get(name); f != null && (f.exists || f.removed) }

  /** Drop what was only made known, if it is of another shape; it has no rows. */
  private[millpond] def forgetFamily(name: String, shape: FamilyShape): Unit = synchronized {
    val f = families.get(name)
    if (f != null && f.shape != shape && f.table.touchedCount == 0) {
      families.remove(name); f.close()
    }
  }

  /** The running batch makes the family part of the state. */
  private[millpond] def createFamily(session: Session, name: String): Unit = synchronized {
    checkWritable(session)
    val f = families.get(name)
    if (!f.exists || f.removed) {
      f.bringBack()
      familiesChanged = true
    }
  }

  /** Drop a family: its rows are deleted, it is forgotten once their deletes are on disk. False if there is none. The query need not have
    * registered it: one that only drops a state variable does not know the variable's schema. */
  def removeFamily(session: Session, name: String): Boolean = synchronized {
    checkWritable(session)
    val f = families.get(name)
    if (f == null || f.removed || !f.exists) false
    else {
      eraseRows(f)
      f.remove()
      familiesChanged = true
      true
    }
  }

  private def eraseRows(f: Family): Unit = {
    val table = f.table
    val cursor = if (table.complete) null
    else new DiskCursor(disk.iterator(readAhead = true), f, -1, KeyRange.Whole)
    def erase(
        base: AnyRef, offset: Long, length: Int, hash: Int, found: Long, slot: => Int): Unit = {
      val rowSlot = if (found == 0L) slot else table.slotOf(found)
      table.write(base, offset, length, hash, found, rowSlot, f.prefixLength(base, offset), null,
        0L, -1)
      count(f, before = true, after = false, known = true, rowSlot)
    }
    table.beginScan()
    try {
      val records = table.all()
      var record = records.next()
      while (record != 0L) {
        val length = table.keyLength(record)
        if (table.isPresent(record)) erase(null, table.keyAddress(record), length,
          Bytes.hash(null, table.keyAddress(record), length), record, 0)
        record = records.next()
      }
      var key = if (cursor == null) null else cursor.next()
      while (key != null) {
        val at = Bytes.ArrayOffset + 4L + f.keyLead
        val length = key.length - f.keyExtra
        val hash = Bytes.hash(key, at, length)
        // what memory has was erased above
        if (table.find(key, at, length, hash) == 0L)
          erase(key, at, length, hash, 0L, f.shape.slotIn(key, 0, key.length))
        key = cursor.next()
      }
    } finally {
      table.endScan()
      if (cursor != null) cursor.close()
    }
  }

  // ---- row operations ------------------------------------------------------------------------------------------------------------

  def get(session: Session, f: Family, key: UnsafeRow): UnsafeRow = synchronized {
    checkUsable(session)
    val rows = f.rows
    rows.encodeKey(key)
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
      else rows.decodeValue(java.util.Arrays.copyOfRange(disk.lastValue, f.valueLead, n), 0)
    }
  }

  /** Put (a row, or all rows of a key with several values) or remove (null). */
  def write(session: Session, f: Family, key: UnsafeRow, value: AnyRef): Unit = {
    writeRow(session, f, key, value)
    if (budget.isExceeded) Pressure.afterWrite(this)
  }

  private def writeRow(session: Session, f: Family, key: UnsafeRow, value: AnyRef): Unit =
    synchronized {
      checkWritable(session)
      val rows = f.rows
      rows.encodeKey(key)
      val hash = Bytes.hash(rows.base, rows.offset, rows.length)
      val table = f.table
      var found = table.find(rows.base, rows.offset, rows.length, hash)
      var present = found != 0L && table.isPresent(found)
      var counted = true
      if (found == 0L && !table.complete) {
        if (exactKeys) {
          val n = readDisk(f, key)
          present = n >= 0
          found = admit(f, n, hash, slotOf(f, key))
        } else counted = false
      }
      if (value != null || present || !counted) {
        val slot = if (found == 0L) checkedSlot(f, key) else table.slotOf(found)
        val prefix = if (found == 0L) f.prefixLength(rows.base, rows.offset) else 0
        if (value == null)
          table.write(rows.base, rows.offset, rows.length, hash, found, slot, prefix, null, 0L, -1)
        else {
          encode(f, value)
          table.write(rows.base, rows.offset, rows.length, hash, found, slot, prefix,
            rows.valueBase, rows.valueOffset, rows.valueLength)
        }
        count(f, present, value != null, counted, slot)
      }
    }

  /** A value to be put: a row, or the list of all values of a key with several. */
  private def encode(f: Family, value: AnyRef): Unit = value match {
    case row: UnsafeRow => f.rows.encodeValue(row)
    case list: Array[UnsafeRow] => f.rows.encodeList(list.toIndexedSeq: _*)
    case other => throw MillpondError.internal(s"a value of ${other.getClass}")
  }

  private def count(f: Family, before: Boolean, after: Boolean, known: Boolean, slot: Int): Unit =
    if (!f.shape.internal && keys.isKnown) {
      if (!known) keys = KeyCount.unknown(layout)
      else if (after && !before) keys.add(slot, 1)
      else if (before && !after) keys.add(slot, -1)
    }

  /** Append to the values of a key with several; the key need not exist. */
  def merge(session: Session, f: Family, key: UnsafeRow, added: Array[UnsafeRow]): Unit = {
    mergeRows(session, f, key, added)
    if (budget.isExceeded) Pressure.afterWrite(this)
  }

  private def mergeRows(
      session: Session, f: Family, key: UnsafeRow, added: Array[UnsafeRow]): Unit = synchronized {
    checkWritable(session)
    val rows = f.rows
    rows.encodeKey(key)
    val hash = Bytes.hash(rows.base, rows.offset, rows.length)
    var found = f.table.find(rows.base, rows.offset, rows.length, hash)
    // the whole list comes to memory, whatever the budget says: an append to what is not there could not be taken back
    if (found == 0L && !f.table.complete)
      found = admitAnyway(f, readDisk(f, key), hash, slotOf(f, key))
    val present = found != 0L && f.table.isPresent(found)
    rows.encodeList(added.toIndexedSeq: _*)
    if (present) {
      rows.checkSize(f.table.valueLength(found).toLong + rows.valueLength)
      f.table.append(found, rows.valueBase, rows.valueOffset, rows.valueLength)
    } else {
      val slot = if (found == 0L) checkedSlot(f, key) else f.table.slotOf(found)
      f.table.write(rows.base, rows.offset, rows.length, hash, found, slot,
        f.prefixLength(rows.base, rows.offset),
        rows.valueBase, rows.valueOffset, rows.valueLength)
      count(f, before = false, after = true, known = true, slot)
    }
  }

  /** A merge record of a changelog: appends to what the versions before left. */
  private[millpond] def replayMerge(f: Family, slot: Int, block: Array[Byte], keyOffset: Long,
      keyLength: Int, hash: Int, record: Long,
      valueAt: Int, valueLength: Int): Unit = {
    var found = record
    if (found == 0L && !f.table.complete) {
      diskKey.set(slot, f, block, keyOffset, keyLength)
      val n = disk.get(diskKey.bytes, diskKey.length)
      if (n >= 0) found =
        f.table.admit(block, keyOffset, keyLength, hash, slot, f.prefixLength(block, keyOffset),
          disk.lastValue, Bytes.ArrayOffset + f.valueLead, n - f.valueLead, 0)
    }
    if (found != 0L && f.table.isPresent(found))
      f.table.append(found, block, Bytes.ArrayOffset + valueAt, valueLength)
    else f.table.write(block, keyOffset, keyLength, hash, found, slot,
      f.prefixLength(block, keyOffset), block, Bytes.ArrayOffset + valueAt, valueLength)
  }

  /** All values of a key, as they are now: the iterator may be read while the key is removed or written. */
  def values(session: Session, f: Family, key: UnsafeRow): Iterator[UnsafeRow] = synchronized {
    checkUsable(session)
    val rows = f.rows
    rows.encodeKey(key)
    val hash = Bytes.hash(rows.base, rows.offset, rows.length)
    val record = f.table.find(rows.base, rows.offset, rows.length, hash)
    if (record != 0L) {
      if (f.table.isPresent(record)) rows.decodeValues(
        FamilyCodec.copyOf(f.table.valueAddress(record), f.table.valueLength(record)), 0)
      else Iterator.empty
    } else if (f.table.complete) Iterator.empty
    else {
      val n = readDisk(f, key)
      admit(f, n, hash, slotOf(f, key))
      if (n < 0) Iterator.empty
      else rows.decodeValues(java.util.Arrays.copyOf(disk.lastValue, n), 0)
    }
  }

  /** The slot of a key that comes new into the store; one that Spark did not place by its key group marks the store. */
  private def checkedSlot(f: Family, key: UnsafeRow): Int =
    layout.checkedSlot(f.rows.partitionKey.group(key))

  private[millpond] def slotOf(f: Family, key: UnsafeRow): Int =
    layout.slot(f.rows.partitionKey.group(key))

  /** Length of the value on disk (with its version byte), or -1. The codec holds the encoded key. */
  private def readDisk(f: Family, key: UnsafeRow): Int = {
    diskKey.set(slotOf(f, key), f, f.rows.base, f.rows.offset, f.rows.length)
    metrics.diskReads += 1
    diskReads += 1
    try disk.get(diskKey.bytes, diskKey.length)
    catch { case e: MillpondException => throw distrust(e) }
  }

  /** A damaged local copy: the next attempt restores from an older snapshot; one that was deleted: from the same. */
  private[millpond] def distrust(e: MillpondException): MillpondException = {
    if (e.kind == "LOCAL_FILES_LOST") loaded = false
    if (e.kind == "SST_DAMAGED" && manifestInUse != null) {
      excludedManifests += manifestInUse; loaded = false
    }
    e
  }

  /** Remember what the disk said about the key in the codec, if the budget allows. */
  private def admit(f: Family, valueLength: Int, hash: Int, slot: Int): Long =
    if (Pressure.admits(this)) admitAnyway(f, valueLength, hash, slot) else 0L

  private def admitAnyway(f: Family, valueLength: Int, hash: Int, slot: Int): Long = {
    val rows = f.rows
    f.table.admit(
      rows.base,
      rows.offset,
      rows.length,
      hash,
      slot,
      f.prefixLength(rows.base, rows.offset),
      disk.lastValue,
      Bytes.ArrayOffset + f.valueLead,
      if (valueLength < 0) -1 else valueLength - f.valueLead,
      0
    )
  }

  // ---- scans ---------------------------------------------------------------------------------------------------------------------

  /** All rows of a family.
    *
    * @param each one pair per value
    * @param grouped rows of one prefix come one after the other, as Spark's state reader wants them; nothing is written meanwhile */
  def scan(session: Session, f: Family, each: Boolean, grouped: Boolean = false): Scan =
    synchronized {
      checkUsable(session)
      val table = f.table
      if (grouped && f.kind == FamilyKind.Prefix)
        open(session, f, KeyRange.Whole, -1, each, ordered = true)(
          if (table.complete) table.byPrefix() else table.inDiskOrder())
      else open(session, f, KeyRange.Whole, if (f.kind.crossKey) FamilyKind.ReservedSlot else -1,
        each)(table.all())
    }

  /** The rows whose leading key columns are `prefix`. */
  def prefixScan(session: Session, f: Family, prefix: UnsafeRow, each: Boolean): Scan =
    synchronized {
      checkUsable(session)
      val rows = f.rows
      rows.encodePrefix(prefix)
      val range = KeyRange(prefix = rows.keyCopy())
      val slot = if (f.kind.crossKey) FamilyKind.ReservedSlot
      else rows.partitionKey.groupOfPrefix(prefix) match {
        case -1 => layout.unknownSlot; case g => layout.slot(g)
      }
      open(session, f, range, slot, each) {
        val length = range.prefix.length
        if (f.table.isSorted) f.table.from(range.prefix, Bytes.ArrayOffset, length)
        else f.table.withPrefix(range.prefix, Bytes.ArrayOffset, length)
      }
    }

  /** The rows with encoded keys in `[start, end)`; sorted families only. */
  def rangeScan(session: Session, f: Family, start: Option[UnsafeRow], end: Option[UnsafeRow],
      each: Boolean): Scan = synchronized {
    checkUsable(session)
    val range =
      KeyRange(from = start.map(f.rows.keyOf).orNull, until = end.map(f.rows.keyOf).orNull)
    val slots = (start.toSeq ++ end.toSeq).map(slotOf(f, _)).distinct
    val slot = if (f.kind.crossKey) FamilyKind.ReservedSlot
    else if (start.isDefined && end.isDefined && slots.size == 1) slots.head
    else -1
    open(session, f, range, slot, each)(f.table.from(range.start, Bytes.ArrayOffset,
        range.start.length))
  }

  /** The rows from the first key at or behind these ordering columns to the end of the family; range families only. */
  def scanFrom(session: Session, f: Family, prefix: UnsafeRow): Scan = synchronized {
    checkUsable(session)
    f.rows.encodePrefix(prefix)
    val range = KeyRange(from = f.rows.keyCopy())
    open(session, f, range, FamilyKind.ReservedSlot, each = false)(f.table.from(range.start,
        Bytes.ArrayOffset, range.start.length))
  }

  /** @param records what memory has of the range; ordered as `Scan` says */
  private def open(session: Session, f: Family, range: KeyRange, slot: Int, each: Boolean,
      ordered: Boolean = false)(records: => RecordCursor): Scan = {
    val epoch = f.table.beginScan()
    try {
      val ofMemory = records
      val ofDisk = if (f.table.complete) null
      else new DiskCursor(disk.iterator(readAhead = range eq KeyRange.Whole), f, slot, range)
      val scan = new Scan(this, session, f, ofMemory, epoch, ofDisk,
        ordered || (f.table.isSorted && slot >= 0), range, each)
      scans += scan
      if (scan.readsAllFromDisk) bigScans += 1
      scan
    } catch { case e: Throwable => f.table.endScan(); throw e }
  }

  private[millpond] def forget(scan: Scan): Unit =
    if (scans.remove(scan) && scan.readsAllFromDisk) bigScans -= 1
  /** Whether somebody reads all rows from the disk now. May be asked without a lock. */
  private[millpond] def isScanned: Boolean = bigScans > 0
  /** Whether anything reads from the disk tier row by row. The engine's monitor is held. */
  private[millpond] def isRead: Boolean = scans.nonEmpty || warmScan != null
  private[millpond] def closeScans(): Unit = scans.toArray.foreach(_.close())

  // ---- versions ------------------------------------------------------------------------------------------------------------------

  /** Whether `wanted` can be had without I/O; takes back the last version if that is what is wanted. */
  def reuse(session: Session, wanted: Long, wantedId: Option[String]): Boolean = synchronized {
    checkHeld(session)
    def same(a: String): Boolean = wantedId.forall(_ == a)
    if (closed || !loaded || inBatch || stale) false
    else if (version == wanted && (wanted == 0 || same(id))) true
    else if (version == wanted + 1 && spilledVersion <= wanted && detachable && (wanted == 0 || same(
        lineage(lineage.size - 2)))) {
      closeScans() // of a reader of the version that is taken back: its records go
      families.values.forEach(_.table.rollback())
      version -= 1
      lineage.remove(lineage.size - 1)
      keepPending(_.version <= version)
      keys = keysDetached
      true
    } else false
  }

  /** Forget the other changelogs. Where storage is not local, what is here is only a copy, and nobody else would remove it. */
  private[millpond] def keepPending(needed: PendingChangelog => Boolean): Unit = {
    val (kept, done) = pending.partition(needed)
    pending = kept
    done.map(c => new File(c.path)).filter(_.toPath.startsWith(context.localDir.toPath)).foreach(
      _.delete())
  }

  private def detachable: Boolean =
    lineage.size >= 2 && !familiesDetached && !families.isEmpty && families.values.asScala.forall(
      _.table.hasDetached)

  /** Begin a micro-batch on `version`: it is proven committed now. */
  def begin(session: Session): Unit = {
    synchronized {
      checkUsable(session)
      if (inBatch)
        throw MillpondError.sessionEnded(
          context.label) // two threads of one task: the other one writes
      inBatch = true
      familiesChanged = false
      batchId = StoreEngine.newId()
      anchor = version
      anchorId = id
      anchorKeys = keys
      keysAtStart = keys
      keys = keys.copy
      // a snapshot holds the deletes of a removed family: nothing is left of it, and its id may be used again
      families.values.removeIf { f =>
        val gone = f.removed && f.removedAt <= math.min(flushed, snapshotVersion) && !warming;
        if (gone) f.close(); gone
      }
      families.values.forEach { f =>
        f.removedBefore = f.removed
        f.table.beginBatch()
        if (!warming) f.table.purgeAbsent(flushed.toInt)
      }
    }
    if (budget.isExceeded) Pressure.atBegin(this)
  }

  /** Make the batch durable and return its version. After a failure the batch can still be aborted. */
  def commit(session: Session): Long = ending.during {
    val start = System.nanoTime
    val (next, from, staged, written) = synchronized {
      checkWritable(session)
      closeScans()
      val staged = new File(layout.stagingDir,
        s".staging-${java.util.UUID.randomUUID.toString.replace("-", "")}")
      val written = batchLog.write(staged, version + 1, batchId)
      publishing = true
      (version + 1, generation, staged, written)
    }
    var done = false
    try {
      Seams.at("commit.publish")
      val published =
        context.call("publish_changelog", from)(_.put("version", next).put("id", batchId).put(
            "staged", staged.getPath))
      Seams.at("commit.answered")
      synchronized {
        checkUsable(session)
        if (generation != from || !batchOpen) throw MillpondError.storeClosed(context.label)
        committed(next, published.get("path").asText, written)
      }
      done = true
    } finally {
      synchronized { publishing = false }
      if (!done) staged.delete(): Unit
    }
    metrics.committed(written.fileBytes, System.nanoTime - start)
    next
  }

  /** The batch is durable as version `next`: memory follows. */
  private def committed(next: Long, path: String, written: WrittenChangelog): Unit = {
    closeScans() // that began since: what they may still read goes
    loaded = false // until memory has it too: what fails on the way leaves no version behind
    Seams.at("commit.published")
    families.values.forEach(_.table.commitBatch(next.toInt))
    version = next
    lineage += batchId
    batchLog.clear()
    val changelog =
      PendingChangelog(next, batchId, path, 2 * (written.rawBytes - written.spilledBytes))
    changelog.flushedBlocks = written.spilledBlocks
    pending = pending :+ changelog
    keysDetached = keysAtStart
    inBatch = false
    emptyBase = false
    families.values.forEach(_.committed(next))
    familiesDetached = familiesChanged
    loaded = true
  }

  /** Take back what the running batch wrote. */
  def abort(session: Session): Unit = ending.during(synchronized { checkHeld(session); undo() })

  private def undo(): Unit = {
    var done = closed
    try if (!closed) {
        Seams.at("session.undo")
        closeScans()
        if (inBatch) {
          // what was spilled cannot be taken back from the disk tier
          if (batchLog.isSpilled) { batchLog.clear(); loaded = false }
          families.values.forEach(_.table.abortBatch())
          families.values.forEach(_.undo())
          if (familiesChanged) stale = true
          keys = keysAtStart
        }
        done = true
      }
    finally {
      inBatch = false
      if (!done) loaded = false // what is in memory now is no version: the next opening loads one
    }
  }

  // ---- end -----------------------------------------------------------------------------------------------------------------------

  /** Forget everything in memory; `diskLock` is held. */
  private[millpond] def unload(): Unit = synchronized {
    closeScans()
    endWarmUp()
    families.values.forEach(_.close())
    families.clear()
    closeDisk()
    diskDir = null
    loaded = false
    inBatch = false
    batchLog.clear()
    spilledVersion = 0L
    takeKept().foreach(_.drop())
    nothingToEvict = false
  }

  /** Open the disk tier, a new one if there is none; `diskLock` is held. */
  private[millpond] def openDisk(): Unit = synchronized {
    if (disk == null) {
      if (diskDir != null)
        DiskTier.checkFolder(
          diskDir) // else a new one would be made, and the next snapshot lack what was there
      val dir = if (diskDir != null) diskDir
      else new File(context.generationDir(generation), s"db-$generation")
      try disk = new DiskTier(dir, Shared.disk(context.options))
      catch {
        case e: MillpondException => if (diskDir == null) LocalDirs.delete(dir); throw e
      } // of a new one nothing is left: the next try begins anew
      diskDir = dir
    }
  }

  private[millpond] def closeDisk(): Unit =
    synchronized(if (disk != null) { disk.close(); disk = null })

  private[millpond] def endWarmUp(): Unit = {
    warming = false
    if (warmScan != null) { warmScan.close(); warmScan = null }
  }

  /** The snapshot waits for maintenance. `diskLock` is held, as for the next. */
  private[millpond] def keep(snapshot: Snapshots.Prepared): Unit = {
    takeKept().foreach(_.drop()); keptSnapshot = Some(snapshot)
  }
  private[millpond] def takeKept(): Option[Snapshots.Prepared] = {
    val kept = keptSnapshot; keptSnapshot = None; kept
  }

  private[millpond] def snapshotVersion: Long = lastSnapshot.fold(0L)(_._1)

  /** From here on changelogs name this snapshot as the base of their lineage. */
  private[millpond] def snapshotPublished(at: Long, snapshotId: String, manifest: String): Unit = {
    lastSnapshot = Some(at -> snapshotId)
    manifestInUse = manifest
    excludedManifests -= manifest
    composed = false
    if (at > lineageBase) {
      lineage.remove(0, (at - lineageBase).toInt)
      lineageBase = at
    }
  }

  def close(): Unit = {
    diskLock.during {
      synchronized {
        if (!closed) {
          unload()
          closed = true
          budget.unregister()
        }
      }
    }
    dropLocalIfClosed()
  }

  /** A snapshot that is being uploaded still reads from the local folder: the last one out removes it. */
  private[millpond] def dropLocalIfClosed(): Unit =
    if (closed) uploadLock.ifFree(LocalDirs.delete(context.localDir))
}

object StoreEngine {
  private val random = new java.security.SecureRandom
  def newId(): String = {
    val b = new Array[Byte](8); if (!Seams.fill(b)) random.nextBytes(b); DiskTier.hex(b)
  }
}
