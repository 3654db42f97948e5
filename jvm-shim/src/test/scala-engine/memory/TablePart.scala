package org.apache.spark.sql.millpond.memory

import scala.collection.immutable.SortedMap
import scala.collection.mutable

import org.apache.spark.sql.millpond.base.{MillpondException, Op}
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.unsafe.Platform

/** Uses a table like the engine, with a map as the disk tier. */
object TablePart extends Part {
  override val name = "table"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)
  override def stretch(what: String, usual: Long): Long = if (what == "table.purge") 1L else usual
  override def failuresEvery: Int = 20
  override def aftermaths: Seq[String] = Seq("go on", "again", "abort", "roll back", "commit")
  override def run(trial: Trial): Unit = {
    val shapes = Seq(TableShape.Plain, TableShape.Chained, TableShape.Sorted)
    val store = new TableStore(trial, shapes((trial.seed % 3).toInt))
    try (1 to trial.random.between(20, 120)).foreach { n =>
        store.step()
        store.verify(deeply = n % 8 == 0)
      }
    finally store.close()
    trial.equal(store.budget.usedBytes, 0L, "memory after the end")
  }
}

/** A store whose keys are numbers, and whose values are Latin-1 strings. `disk` has the rows of the
  * disk tier. `working` has the rows that a reader must see. */
private final class TableStore(trial: Trial, shape: TableShape) {
  import TableStore._
  import trial.{chance, check, equal, random, sheltered}

  val budget = new MemoryBudget(1L << 30)
  private val keyCount = random.between(4, 60)
  private val exact = random.nextBoolean()
  private val hashMask = if (chance(30)) 0x30003 else -1 // many keys with one tag, many in one slot
  private val mostBytes = if (chance(30)) 20000 else 100
  private var table = newTable()
  private var disk: State = SortedMap.empty
  private var flushed = 0
  private var version = 0
  private var anchor = 0
  private var working: State = SortedMap.empty
  private val versions = mutable.Map[Int, State](0 -> SortedMap.empty)
  private val changelogs = mutable.Map.empty[Int, Seq[Change]]
  private var inBatch = false
  private var spilled = 0
  private var spilledRecords = 0 // of the log of that version, the disk tier has so many
  private var loaded = true
  private var log = Seq.empty[Change] // of the batch
  private var warm: List[(Int, String)] = null
  private val open = mutable.ArrayBuffer.empty[Walk]

  private val keys = Array.tabulate(keyCount) { i =>
    val tail = new Array[Byte](i % 11)
    java.util.Arrays.fill(tail, i.toByte)
    // The number stands twice: `Chained` finds the prefix by it, and it makes keys different.
    Array[Byte](2, 0, 0, 0, 0, (i % 5).toByte, i.toByte) ++ tail
  }
  /** It may have been scanned very often. */
  private def newTable(): Table = {
    val made = new Table(budget, shape)
    if (chance(30)) made.epoch = Int.MaxValue - random.nextInt(4)
    made
  }
  private def hashOf(k: Int): Int =
    Bytes.hash(keys(k), Bytes.ArrayOffset, keys(k).length) & hashMask
  private def find(in: Table, k: Int): Long =
    in.find(keys(k), Bytes.ArrayOffset, keys(k).length, hashOf(k))
  private def find(k: Int): Long = find(table, k)
  private def keyOf(t: Table, record: Long): Int =
    Platform.getByte(null, t.keyAddress(record) + 6).toInt
  private def text(address: Long, length: Int): String = {
    val bytes = new Array[Byte](length)
    Bytes.copy(null, address, bytes, Bytes.ArrayOffset, length)
    new String(bytes, "ISO-8859-1")
  }
  private def valueOf(t: Table, record: Long): String =
    text(t.valueAddress(record), t.valueLength(record))

  private def someKey: Int = random.nextInt(keyCount)
  private def someValue: String = {
    val length = if (chance(5)) random.nextInt(mostBytes) else random.nextInt(40)
    (('a' + random.nextInt(3)).toChar.toString * length)
  }

  // ---- as the engine does -----------------------------------------------------------------------

  private def admit(k: Int): Long = {
    val value = disk.get(k)
    val bytes = value.fold(new Array[Byte](0))(_.getBytes("ISO-8859-1"))
    table.admit(keys(k), Bytes.ArrayOffset, keys(k).length, hashOf(k), k, PrefixLength, bytes,
      Bytes.ArrayOffset, value.fold(-1)(_.length), 0)
  }
  private def write(
      k: Int, found: Long, value: Option[String], appended: Boolean = false): Unit = {
    val bytes = value.fold(new Array[Byte](0))(_.getBytes("ISO-8859-1"))
    // its last four bytes may come by themselves
    val isSplit = bytes.length >= 4 && chance(30)
    val tail = if (isSplit)
      Platform.getInt(bytes, Bytes.ArrayOffset + bytes.length - 4) & 0xFFFFFFFFL
    else -1L
    val given = if (isSplit) java.util.Arrays.copyOf(bytes, bytes.length - 4) else bytes
    table.write(keys(k), Bytes.ArrayOffset, keys(k).length, hashOf(k), found, k, PrefixLength,
      given, Bytes.ArrayOffset, value.fold(-1)(_.length), appended, tail)
  }

  private def get(k: Int): Unit = if (find(k) == 0L && !table.complete && chance(80)) admit(k): Unit
  private def put(k: Int, value: Option[String]): Unit = {
    var found = find(k)
    var present = found != 0L && table.isPresent(found)
    var counted = true
    if (found == 0L && !table.complete) {
      if (exact) {
        present = disk.contains(k)
        if (chance(80)) found = admit(k)
      } else counted = false
    }
    if (value.isDefined || present || !counted) write(k, found, value)
    working = value.fold(working - k)(working.updated(k, _))
  }
  private def append(k: Int, added: String): Unit = {
    appendTo(k, added, replay = false)
    working = working.updated(k, working.getOrElse(k, "") + added)
  }
  private def appendTo(k: Int, added: String, replay: Boolean): Unit = {
    var found = find(k)
    if (found == 0L && !table.complete && (!replay || disk.contains(k))) found = admit(k)
    if (found != 0L && table.isPresent(found))
      table.append(found, added.getBytes("ISO-8859-1"), Bytes.ArrayOffset, added.length)
    else write(k, found, Some(added), appended = !replay)
  }

  /** Deletes all rows, like a dropped state variable. */
  private def erase(): Unit = {
    val cursor = if (table.complete) Nil else disk.keys.toList
    table.beginScan()
    try {
      val records = table.all()
      var record = records.next()
      while (record != 0L) {
        if (table.isPresent(record)) {
          val k = keyOf(table, record)
          write(k, record, None)
          working -= k
        }
        record = records.next()
      }
      cursor.foreach(k => if (find(k) == 0L) { write(k, 0L, None); working -= k })
    } finally table.endScan()
    equal(working, SortedMap.empty[Int, String], "what is left of all rows")
  }

  private def changes(whole: Boolean): Seq[Change] =
    (0 until table.touchedCount).flatMap(change(_, whole))
  private def change(i: Int, whole: Boolean): Option[Change] = {
    val now = table.touchedRecord(i)
    val k = keyOf(table, now)
    table.change(i, merges = !whole) match {
      case Op.Put => Some(Change(Op.Put, k, valueOf(table, now)))
      case Op.Merge =>
        Some(Change(Op.Merge, k,
            valueOf(table, now).substring(table.mergeBase(i))))
      case Op.Delete => Some(Change(Op.Delete, k, ""))
      case _ => None
    }
  }
  /** Writes changes that the log lacks. */
  private def logSome(most: Int): Unit = sheltered("log") {
    val before = table.unloggedCount
    var left = most
    while (left > 0 && table.unloggedCount > 0) {
      val i = table.takeUnlogged()
      // after a spill the table begins anew, and knows nothing of the log
      if (spilled <= version)
        equal(table.isTold(i), log.exists(_.key == keyOf(table, table.touchedRecord(i))),
          "whether the log has the key")
      val c = change(i, whole = false)
      table.markLogged(i, c.fold(0: Byte)(_.op))
      log ++= c
      left -= 1
    }
    equal(table.unloggedCount, math.max(0, before - most), "what the log lacks")
    if (table.unloggedCount == 0) {
      equal(table.waitingBytes, 0L, "the long values that the log lacks")
      equal(applied(versions(version), log), working, "what the log makes of the version before")
    }
  }
  private def applied(
      state: State, changes: Seq[Change]): State = changes.foldLeft(state) { (s, c) =>
    if (c.op == Op.Delete) s - c.key
    else if (c.op == Op.Put) s.updated(c.key, c.value)
    else s.updated(c.key, s.getOrElse(c.key, "") + c.value)
  }

  private def begin(): Unit = {
    inBatch = true
    anchor = version
    sheltered("begin") {
      table.beginBatch()
      if (warm == null) table.purgeAbsent(flushed)
    }
  }
  private def commit(): Unit = {
    closeWalks()
    // a small batch is written without marks
    if (log.isEmpty && chance(50)) log = changes(whole = false) else logSome(Int.MaxValue)
    equal(applied(versions(version), log), working,
      "what the changelog makes of the version before")
    version += 1
    versions(version) = working
    changelogs(version) = log
    sheltered("commit")(table.commitBatch(version))
    log = Nil
    inBatch = false
  }
  private def abort(): Unit = {
    closeWalks()
    sheltered("abort")(table.abortBatch())
    working = versions(version)
    inBatch = false
    log = Nil
    if (spilled > version) restore()
  }
  private def canRollBack: Boolean = !inBatch && table.hasDetached && spilled < version
  private def rollback(): Unit = {
    closeWalks()
    sheltered("rollback")(table.rollback())
    version -= 1
    working = versions(version)
  }
  private def flush(): Unit = {
    (flushed + 1 to anchor).foreach(v =>
      disk = applied(disk, changelogs(v).drop(if (v == spilled) spilledRecords else 0)))
    flushed = anchor
    if (spilled <= flushed) equal(disk, versions(flushed), s"the disk tier at version $flushed")
  }
  /** Writes the table to the disk tier in mid-batch, and goes on with an empty table. */
  private def spill(): Unit = {
    flush()
    warm = null
    disk = applied(disk, changes(whole = true))
    logSome(Int.MaxValue)
    spilledRecords = log.size
    spilled = version + 1
    val full = table
    table = newTable()
    table.lack()
    full.retire()
  }
  private def restore(): Unit = {
    closeWalks()
    loaded = false
    table.close()
    spilled = 0
    flushed = random.between(math.max(0, anchor - 2), anchor + 1)
    disk = versions(flushed)
    warm = null
    working = versions(version)
    table = newTable()
    if (flushed > 0) table.lack()
    (flushed + 1 to version).foreach { v =>
      changelogs(v).foreach { c =>
        val found = find(c.key)
        if (c.op == Op.Put) write(c.key, found, Some(c.value))
        else if (c.op == Op.Merge) appendTo(c.key, c.value, replay = true)
        else if (found != 0L || !table.complete) write(c.key, found, None)
      }
      table.commitBatch(v)
      table.beginBatch()
    }
    anchor = version
    loaded = true
    if (!table.complete && chance(80)) { table.beginLoading(); warm = disk.toList }
  }
  private def warmUp(): Unit = {
    val (now, later) = warm.splitAt(1 + random.nextInt(40))
    now.foreach { case (k, _) => if (find(k) == 0L) admitFrom(k, now.toMap.apply(k)) }
    warm = later
    if (later.isEmpty) { table.endLoading(); warm = null }
  }
  private def admitFrom(k: Int, value: String): Unit = {
    table.admit(keys(k), Bytes.ArrayOffset, keys(k).length, hashOf(k), k, PrefixLength,
      value.getBytes("ISO-8859-1"), Bytes.ArrayOffset, value.length, 0): Unit
  }
  private def rebuild(): Unit = {
    warm = null
    var room = random.nextInt(20)
    table = table.rebuild(
      { record =>
        val keep = table.stamp(record) > flushed || (table.wasUsed(record) && table.isPresent(
          record) && room > 0)
        if (keep) room -= 1
        keep
      },
      (_, _) => PrefixLength)
  }
  private def closeWalks(): Unit = open.toList.foreach(_.close())

  // ---- iterators --------------------------------------------------------------------------------

  /** Merges the tiers like `Scan`: first the rows of memory, then the other rows of the disk. */
  private final class Walk(wanted: Int => Boolean, begin: Table => RecordCursor) {
    private val in = table
    private val expected = working.filter { case (k, _) => wanted(k) }
    private val epoch = in.beginScan()
    private val records =
      try begin(in)
      catch { case e: Throwable => in.endScan(); throw e }
    private var rows = if (in.complete) Nil else disk.toList.filter { case (k, _) => wanted(k) }
    private val seen = mutable.LinkedHashMap.empty[Int, String]
    private var inMemory = true

    def next(): Unit = {
      if (inMemory) {
        val record = records.next()
        if (record == 0L) inMemory = false
        else if (in.isPresent(record) && wanted(keyOf(in, record)))
          take(keyOf(in, record), valueOf(in, record))
      } else rows match {
        case (k, value) :: rest =>
          rows = rest
          val found = find(in, k)
          if (found == 0L || in.birth(found) > epoch) take(k, value)
        case Nil =>
          equal(seen.keySet.toSet, expected.keySet.toSet, "the keys of an iterator")
          close()
      }
    }
    private def take(k: Int, value: String): Unit = {
      check(seen.put(k, value).isEmpty, s"an iterator returns key $k twice")
      equal(Some(value), expected.get(k), s"what an iterator returns for key $k")
    }
    def close(): Unit = if (open.contains(this)) { open -= this; in.endScan() }
  }

  private def openWalk(): Unit = {
    val k = someKey
    open += (shape match {
      case TableShape.Chained if chance(50) =>
        new Walk(other => other % 5 == k % 5,
          _.withPrefix(keys(k), Bytes.ArrayOffset, PrefixLength))
      case TableShape.Chained if chance(50) => new Walk(_ => true, _.byPrefix())
      case TableShape.Sorted if chance(50) =>
        new Walk(other => java.util.Arrays.compareUnsigned(keys(other), keys(k)) >= 0,
          _.from(keys(k), Bytes.ArrayOffset, keys(k).length))
      case _ => new Walk(_ => true, _.all())
    })
  }

  // ---- steps ------------------------------------------------------------------------------------

  private def step(what: String)(work: => Unit): Unit = {
    trial.step(s"$what  [version $version, flushed $flushed, complete ${table.complete}]")
    try work
    catch {
      case e @ (_: OutOfMemoryError | _: MillpondException) if trial.hasFailed =>
        if (!loaded) restore() // a half-loaded store serves no reads
        verify(deeply = true)
        trial.step(s"  ${trial.aftermath}")
        trial.aftermath match {
          case "again" => if (what != "restore") work
          case "abort" => if (inBatch) abort()
          case "roll back" => if (inBatch) abort(); if (canRollBack) rollback()
          case "commit" => if (inBatch) commit()
          case _ =>
        }
        verify(deeply = true)
    }
  }

  def step(): Unit = {
    val k = someKey
    random.nextInt(if (inBatch) 108 else 130) match {
      case n if n < 25 && inBatch =>
        val v = someValue; step(s"put $k, ${v.length} bytes")(put(k, Some(v)))
      case n if n < 40 && inBatch => step(s"remove $k")(put(k, None))
      case n if n < 52 && inBatch =>
        val v = someValue
        step(s"append to $k, ${v.length} bytes")(append(k, v))
      case n if n < 60 && inBatch =>
        val most = random.nextInt(8)
        step(s"log $most")(logSome(most))
      case n if n < 61 && inBatch => step("erase all")(erase())
      case n if n < 62 && inBatch =>
        if (spilled <= version) step("lose the log") { table.forgetLog(); log = Nil }
      case n if n < 68 && inBatch => step("commit")(commit())
      case n if n < 71 && inBatch => step("abort")(abort())
      case n if n < 73 && inBatch && open.isEmpty => step("spill")(spill())
      case n if n < 45 && !inBatch => step("begin")(begin())
      case n if n < 55 && canRollBack => step("roll back")(rollback())
      case n if n < 58 && !inBatch => step("restore")(restore())
      case n if n < 61 && !inBatch => step("begin")(begin()); step("rebuild")(rebuild())
      case n if n < (if (inBatch) 74 else 66) => step("flush")(flush())
      case n if n < 78 =>
        step("evict") {
          warm = null
          sheltered("evict")(table.evict(random.nextInt(2000).toLong, flushed)): Unit
        }
      case n if n < 90 => if (warm != null) step("warm up")(warmUp())
      case n if n < 94 => step(s"get $k")(get(k))
      case n if n < 98 => if (open.size < 3) step("open an iterator")(openWalk())
      case _ =>
        open.headOption.foreach(_ => {
          val w = open(random.nextInt(open.size))
          step("iterate")((1 to random.nextInt(20)).foreach(_ => if (open.contains(w)) w.next()))
        })
    }
  }

  /** @param deeply whether to check the parts of the table too */
  def verify(deeply: Boolean): Unit = {
    if (deeply) TableCheck(trial, table)
    (0 until keyCount).foreach { k =>
      val found = find(k)
      val wanted = working.getOrElse(k, null)
      val seen = if (found != 0L) { if (table.isPresent(found)) valueOf(table, found) else null }
      else if (table.complete) null
      else disk.getOrElse(k, null)
      if (seen != wanted) equal(seen, wanted, s"key $k")
    }
  }

  def close(): Unit = {
    closeWalks()
    table.close()
  }
}

private object TableStore {
  type State = SortedMap[Int, String]
  final case class Change(op: Byte, key: Int, value: String)
  /** Every key begins with a length of four bytes and a prefix of two. */
  val PrefixLength = 6
}
