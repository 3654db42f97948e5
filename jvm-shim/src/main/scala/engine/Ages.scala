package org.apache.spark.sql.millpond.engine

import java.io.File
import java.util.TreeMap

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException, TimeToLive}
import org.apache.spark.sql.millpond.disk.{DiskCursor, KeyRange}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Age, Family, FamilyKind}

/** Ends the rows that nobody wrote for their time to live. What ends is deleted when a batch
  * begins, as if the operator had removed it: so replays, snapshots and readers need to know
  * nothing of it.
  *
  * Rows carry their age. Keys are noted by age, so the begin of a batch looks at those whose time
  * has come, and at no others. A row that is written again keeps its note, which is too old then:
  * when that is due, the row is noted by the age that it has. So each row has a note that is no
  * younger than itself. The notes are local, and made from the rows when a batch first begins after
  * a load. The same look gives an age to rows that have none: those from before the option was
  * set. Callers hold the engine's monitor, or the call takes it. */
private[engine] final class Ages(engine: StoreEngine) {
  private val row = new StoredRow(engine)
  private val notes = new TreeMap[Long, AgeFile] // by age
  // the batch that began last may be taken back: the version on which it began, the notes that it
  // used, and those that it made
  private var begun = -1L
  private var used = Vector.empty[(Long, AgeFile)]
  private val made = new TreeMap[Long, AgeFile]
  private var generation = -1 // of the load whose rows the notes describe
  private var current: AgeFile = null // the notes of `stamp` that the batch makes
  private var stamp = Age.Unknown
  private var youngest = Age.Unknown // no row is younger
  // Rows of this age and younger ones are noted with each change of their age.
  private var notedEach = Long.MaxValue
  private var counted = 0L // the rows, when all were noted
  private var number = 0L // of the files
  private var ended = 0L

  /** A batch has begun.
    * @param asked None: its rows do not end
    * @param counts of a join, whose rows lie here by key and index */
  def begin(
      session: Session, asked: Option[TimeToLive], counts: Option[JoinCounts] = None): Unit = {
    var done = false
    try { endAndNote(session, asked, counts); done = true }
    catch { case e: MillpondException => throw engine.synchronized(engine.distrust(e)) }
    finally if (!done) engine.synchronized { generation = -1 } // the next begin makes them anew
  }

  private def endAndNote(
      session: Session, asked: Option[TimeToLive], counts: Option[JoinCounts]): Unit = {
    val due = engine.synchronized {
      engine.checkWritable(session)
      ended = 0L
      val f = engine.families.get(StateStore.DEFAULT_COL_FAMILY_NAME)
      asked match {
        case None =>
          forget()
          if (f != null && f.isRegistered) f.rows.stampWith(Age.Unknown)
          Vector.empty
        case Some(ttl) =>
          check(f)
          f.rows.stampWith(ttl.stamp)
          if (generation == engine.status.generation) endLast()
          if (generation != engine.status.generation || tooMany) noteAll(f)
          begun = engine.committed.version
          stamp = ttl.stamp
          youngest = math.max(youngest, stamp)
          if (counts.isDefined) noteEach() // a row that ends makes another one move
          take(ttl.deadline)
      }
    }
    if (due.nonEmpty) {
      asked.foreach { ttl =>
        val join = counts.map(new JoinEnd(engine, session, _, ttl, moved))
        due.foreach(settle(session, _, ttl, join))
      }
      engine.synchronized {
        engine.checkWritable(session)
        made.values.forEach(_.rest())
      }
    }
  }

  private def check(f: Family): Unit =
    if (f.kind != FamilyKind.Point || !f.shape.plainRows || f.shape.multi)
      throw MillpondError.internal(
        s"store ${engine.context.label} holds rows that can have no age: ${f.shape}")

  /** The batch writes a row, whose age becomes that of the batch.
    * @param before its age so far; `Unknown`: it was not there */
  def wrote(slot: Int, base: AnyRef, offset: Long, length: Int, before: Long): Unit =
    if (before == Age.Unknown || before > stamp || stamp >= notedEach && before != stamp) {
      if (current == null) current = fileIn(made, stamp)
      current.add(slot, base, offset, length)
    }

  /** In a batch with a time to live: each row that is there keeps its note, whatever its age is,
    * and `wrote` need not hear of it. */
  def keepsNotes: Boolean = notedEach == Long.MaxValue && stamp == youngest

  /** A row may come that has a note already: the operator removes rows, or nobody knows whether
    * they are there. If that note counted for the new row, a key that comes and goes would get more
    * and more of them. So a note counts from now on only for a row of its very age. */
  def noteEach(): Unit =
    if (notedEach == Long.MaxValue) notedEach = youngest + 1

  /** The rows that the batch ended, once. */
  def takeEnded(): Long = { val n = ended; ended = 0L; n }

  /** Rows that the operator removed leave their notes. Where new ones come all the time, these
    * would pile up for as long as a row may live. */
  private def tooMany: Boolean = {
    val keys = engine.committed.keys
    // an estimate may be far too low, and all rows would be noted with each batch
    val rows = if (keys.isKnown) keys.total else math.max(engine.keyCount, counted)
    noted > Ages.MostPerRow * rows + Ages.FewNotes
  }

  private def noted: Long = notes.values.asScala.iterator.map(_.count).sum

  private def fileIn(files: TreeMap[Long, AgeFile], age: Long): AgeFile =
    files.computeIfAbsent(age, _ => {
      number += 1
      new AgeFile(new File(engine.context.generationDir(engine.status.generation), s"ages-$number"))
    })

  private def forget(): Unit = {
    Seq(notes, made).foreach { files =>
      files.values.forEach(_.delete())
      files.clear()
    }
    used.foreach(_._2.delete())
    used = Vector.empty
    generation = -1
    current = null
    stamp = Age.Unknown
    youngest = Age.Unknown
    notedEach = Long.MaxValue
  }

  /** The batch that began last is committed. Or Spark begins it again: then the notes are those
    * from before it. */
  private def endLast(): Unit = {
    val isCommitted = engine.committed.version > begun
    current = null
    if (isCommitted) made.forEach(keep(_, _)) else used.foreach { case (age, file) =>
      keep(age, file)
    }
    (if (isCommitted) used.map(_._2) else made.values.asScala).foreach(_.delete())
    made.clear()
    used = Vector.empty
  }

  private def keep(age: Long, file: AgeFile): Unit = {
    val there = notes.putIfAbsent(age, file)
    if (there == null) file.rest()
    else {
      there.addAll(file)
      there.rest()
      file.delete()
    }
  }

  private def take(deadline: Long): Vector[AgeFile] = {
    var due = Vector.empty[AgeFile]
    while (!notes.isEmpty && notes.firstKey <= math.max(deadline, Age.Unknown)) {
      val first = notes.pollFirstEntry()
      used :+= ((first.getKey, first.getValue))
      due :+= first.getValue
    }
    due
  }

  /** Note each row by its age: after a load nobody knows them. */
  private def noteAll(f: Family): Unit = {
    forget()
    val table = f.table
    val byAge = new ByAge
    val cursor = if (table.complete) null
    else new DiskCursor(engine.diskRows(readAhead = true), f, -1, KeyRange.Whole)
    table.beginScan()
    try {
      val records = table.all()
      var record = records.next()
      while (record != 0L) {
        if (table.isPresent(record))
          byAge(Age.of(null, table.valueAddress(record), table.valueLength(record))).add(
            table.slotOf(record), null, table.keyAddress(record), table.keyLength(record))
        record = records.next()
      }
      var key = if (cursor == null) null else cursor.next()
      while (key != null) {
        val at = Bytes.ArrayOffset + 4L + f.keyLead
        val length = key.length - f.keyExtra
        if (table.isEmpty || table.find(key, at, length, Bytes.hash(key, at, length)) == 0L) {
          val found = cursor.value
          byAge(Age.of(found, Bytes.ArrayOffset + f.valueLead, found.length - f.valueLead))
            .add(f.shape.slotIn(key, 0, key.length), key, at, length)
        }
        key = cursor.next()
      }
    } finally {
      table.endScan()
      if (cursor != null) cursor.close()
    }
    notes.values.forEach(_.rest())
    counted = noted
    if (!notes.isEmpty) youngest = notes.lastKey
    generation = engine.status.generation
  }

  /** The notes of ages that come in any order. Most ages come again and again. */
  private final class ByAge {
    private val ages = Array.fill(Ages.Remembered)(Long.MinValue)
    private val files = new Array[AgeFile](Ages.Remembered)

    def apply(age: Long): AgeFile = {
      val i = ((age * 0x9E3779B97F4A7C15L) >>> 56).toInt & (Ages.Remembered - 1)
      if (ages(i) != age) {
        files(i) = fileIn(notes, age)
        ages(i) = age
      }
      files(i)
    }
  }

  /** Look at the rows of some notes: end them, give them an age, or note them by theirs. */
  private def settle(
      session: Session, file: AgeFile, ttl: TimeToLive, join: Option[JoinEnd]): Unit = {
    val cursor = file.read()
    try {
      var more = true
      while (more) {
        var isDue = false // a row of a join
        engine.synchronized {
          engine.checkWritable(session)
          val f = engine.families.get(StateStore.DEFAULT_COL_FAMILY_NAME)
          var left = Ages.Together
          while (more && left > 0 && !isDue) {
            more = cursor.next()
            if (more && row.find(f, cursor.slot, cursor.key, cursor.length)) {
              isDue = join.isDefined && row.isDue(ttl)
              if (!isDue) settleRow(ttl)
            }
            // rows that get an age come into memory, and may be large
            left = if (engine.budget.isExceeded) 0 else left - 1
          }
        }
        // another store takes part, so this one is not locked
        if (isDue) join.foreach(j => ended += j.end(cursor.slot, cursor.key, cursor.length))
        if (engine.budget.isExceeded) engine.pressure.afterWrite()
      }
    } finally cursor.close()
  }

  private def settleRow(ttl: TimeToLive): Unit =
    if (row.age == Age.Unknown) {
      row.writeAged(row, stamp)
      moved(row)
    } else if (row.isDue(ttl)) {
      row.remove()
      ended += 1
    } else if (row.age < notedEach) moved(row)

  /** A row needs a note of its age. */
  private def moved(row: StoredRow): Unit = row.noteIn(fileIn(made, row.age))
}

private object Ages {
  private val Together = 256 // rows under one lock
  private val Remembered = 256 // ages
  private val MostPerRow = 4L
  private val FewNotes = 50000L
}
