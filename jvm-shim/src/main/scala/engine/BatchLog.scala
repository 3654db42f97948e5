package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{
  BuildInfo, Json, MillpondError, MillpondException, Op, Seams
}
import org.apache.spark.sql.millpond.changelog.{ChangelogWriter, Codec, PendingChangelog}
import org.apache.spark.sql.millpond.rows.Family

/** Writes the changes of a micro-batch into its changelog. The commit of a small batch writes all.
  * A large batch is written while it runs, so that the commit finds little left: whenever a family
  * has many changes that the file lacks, the task writes the oldest of them. If one of them changes
  * again, the file gets a second record of its key. A batch that outgrows the memory budget also
  * writes segments, for the disk tier. Callers hold the engine's monitor. */
private[engine] final class BatchLog(engine: StoreEngine) extends Logging {
  import BatchLog._

  private val options = engine.context.options
  private val codec = Codec.of(options.string("changelog.codec").get)
  private val waitingRows = Seams.stretch("log.waiting", 16384L).toInt
  // the larger the batches, the less they keep for their commits: each part of a file lowers this
  private var mostWaiting = waitingRows
  private var writer: ChangelogWriter = null // of a large batch, until its commit
  private var sync: LogSync = null // of its file, where storage is local
  private var upload: LogUpload = null // of its file, elsewhere
  private var told = 0L // its records, without those that the commit writes at once
  private var toldAgain = 0L // those of keys of which it has one already
  private var spilled = false
  private var spilledBlocks = 0
  private var spilledBytes = 0L
  private var failed = false // the file could not be written: the commit tries it once more
  private var aheadNs = 0L // of writing parts before the commit
  private var ahead = 0

  /** Whether the disk tier holds a part of the running batch. */
  def isSpilled: Boolean = spilled

  /** The batch changed a row of the family. */
  def afterWrite(f: Family): Unit = if (waits(f, mostWaiting) && !failed) writePart(f)

  /** Whether the file lacks so many changes, or as much of long values and lists. */
  private def waits(f: Family, rows: Int): Boolean =
    f.table.unloggedCount >= rows || f.table.waitingBytes >= rows * LongBytes

  private def writePart(f: Family): Unit = {
    val start = System.nanoTime
    var done = false
    try {
      val log = begun()
      writing(log.file) {
        writeBlock(log, f)
        log.pause()
      }
      mostWaiting =
        math.max(math.max(1, waitingRows / 4), mostWaiting - math.max(1, waitingRows / 64))
      if (sync != null) sync.written(log.fileBytes)
      if (upload != null) upload.written(log.fileBytes)
      aheadNs += System.nanoTime - start
      done = true
    } catch {
      case NonFatal(e) if !spilled =>
        logWarning(s"store ${engine.context.label}: the commit writes the whole changelog, since " +
          s"it cannot be written yet: ${e.getMessage}")
      // no memory, say: the row that led here is written all the same
      case e: Throwable => engine.batch.spoil(e); throw e
    } finally if (!done) {
        unpublished()
        failed = true
      }
  }

  private def begun(): ChangelogWriter = {
    if (writer == null) {
      val file = newFile()
      writer = writing(file)(ChangelogWriter.withRoom(file,
          header(engine.committed.version + 1, engine.batch.id), codec))
      sync = if (isCopy(file) || !options.boolean("commit.fsync")) null else new LogSync(file)
      upload =
        if (!isCopy(file) || !engine.context.usesCommitIds) null
        else new LogUpload(engine.context, file, writer.fixedFrom, engine.committed.version + 1,
          engine.batch.id, engine.status.generation)
    }
    writer
  }

  /** Whether the file lies on this executor's own disk: the storage gets it from there. */
  private def isCopy(file: File): Boolean =
    file.toPath.startsWith(engine.context.localDir.toPath)

  private def newFile(): File = ChangelogWriter.stagingFile(new File(engine.layout.stagingDir))

  /** What the file has is lost, or never arrived: memory has it all. */
  private def forget(): Unit = {
    discard()
    sync = null // it says nothing of the file that the commit writes
    endUpload()
    told = 0L
    toldAgain = 0L
    engine.families.values.forEach(_.table.forgetLog())
  }

  private def discard(): Unit = if (writer != null)
    try writer.discard()
    finally writer = null

  private def endUpload(): Unit = if (upload != null) {
    upload.end()
    upload = null
  }

  /** Complete the changelog of the batch. The file is the caller's from then on. */
  def write(version: Long, id: String): WrittenChangelog = {
    if (writer != null && !spilled && isLost) forget()
    val multi = engine.families.values.stream.anyMatch(f =>
      f.shape.multi && f.table.touchedCount > 0)
    if (writer == null) {
      val file = newFile()
      to(file, header(version, id), multi) { log =>
        engine.families.values.forEach(f =>
          writeTouched(log, f, 0, Long.MaxValue, whole = false): Unit)
        WrittenChangelog(file, log.finish(), log.rawBytes, 0, 0L, aheadNs)
      }
    } else {
      val log = writer
      var done = false
      try {
        val bytes = writing(log.file) {
          if (isLost) throw new java.io.IOException("it was deleted, or the disk refused it")
          engine.families.values.forEach(writeWaiting(log, _))
          log.finish(header(version, id), toldAgain > 0 || spilled || multi)
        }
        writer = null
        if (upload != null) upload.completed()
        done = true
        WrittenChangelog(log.file, bytes, log.rawBytes, spilledBlocks, spilledBytes, aheadNs)
      } finally if (!done) unpublished()
    }
  }

  /** Whether a collection took the file for one that nobody finishes, or a sync failed. */
  private def isLost: Boolean = !writer.file.isFile || sync != null && sync.hasFailed

  /** What syncs the file of the batch; None: nothing does. */
  def syncing: Option[LogSync] = Option(sync)

  /** The changelog is published. A sync that was under way when it was completed may have failed
    * since, and then the agent's own did not hear of it. It has been awaited. */
  def checkSynced(file: File): Unit = if (sync != null && sync.hasFailed)
    throw cannotWrite(file, new java.io.IOException("the disk lost a part of it"), isCopy(file))

  /** The commit failed. Another one may follow, unless memory lacks a part of the batch. */
  def unpublished(): Unit = if (spilled) engine.status.unloaded() else forget()

  /** The file of a batch that waits for rows stays younger than those that a collection deletes.
    * This host's clock may be behind the storage's. */
  def keepYoung(): Unit = if (writer != null) {
    val file = writer.file
    file.setLastModified(math.max(file.lastModified, System.currentTimeMillis)): Unit
  }

  /** Write the changes in memory into files of bounded size in `dir` and return them. The files
    * hold whole values, since the disk tier takes them in before the commit. */
  def segments(dir: File, version: Long, id: String): Seq[PendingChangelog] = {
    var added = Vector.empty[PendingChangelog]
    var done = false
    try {
      engine.families.values.forEach { f =>
        var next = 0
        while (next < f.table.touchedCount) {
          val file = new File(dir, s"segment-${java.util.UUID.randomUUID}")
          added :+= PendingChangelog(version, id, file.getPath, 0L)
          to(file, header(version, id)) { segment =>
            next =
              writeTouched(segment, f, next, Seams.stretch("segment", SegmentBytes), whole = true)
            segment.finish()
          }
        }
      }
      done = true
    } finally if (!done) delete(added) // the disk tier took none in: the batch is as it was
    added
  }

  def delete(segments: Seq[PendingChangelog]): Unit =
    segments.foreach(s => new File(s.path).delete())

  /** The disk tier has all changes so far, and memory gives them up: the log must have them. */
  def writeAll(): Unit = {
    spilled = true
    val start = System.nanoTime
    val log = begun()
    writing(log.file) {
      engine.families.values.forEach(writeWaiting(log, _))
      log.pause()
      spilledBlocks = log.endBlock()
      spilledBytes = log.rawBytes
    }
    if (upload != null) upload.written(log.fileBytes)
    aheadNs += System.nanoTime - start
  }

  /** The batch has ended. */
  def clear(): Unit =
    try discard()
    finally {
      sync = null
      endUpload()
      // where rows change again and again, a longer wait spares records; else the next batch is as
      // large, and begins early to keep little
      if (toldAgain > told / 4) mostWaiting = math.min(waitingRows, 2 * mostWaiting)
      told = 0L
      toldAgain = 0L
      spilled = false
      spilledBlocks = 0
      spilledBytes = 0L
      failed = false
      aheadNs = 0L
    }

  private def to[T](file: File, header: ObjectNode, repeats: Boolean = false)(
      fill: ChangelogWriter => T): T = writing(file) {
    val log = new ChangelogWriter(file, header, codec, repeats)
    var done = false
    // also if an interruption of the task ends the write
    try { val result = fill(log); done = true; result }
    finally if (!done) log.discard()
  }

  private def writing[T](file: File)(work: => T): T = {
    val start = System.nanoTime
    try work
    catch {
      // the folder belongs to this executor: the next opening makes it anew
      case e: java.io.IOException
        if isCopy(file) && !file.getParentFile.isDirectory =>
        engine.status.outdated()
        throw MillpondError.of("LOCAL_FILES_LOST",
          s"the folder of the changelog $file was deleted.", cause = e)
      case e: java.io.IOException =>
        val failed = cannotWrite(file, e, isCopy(file))
        // a task that was killed says nothing about the storage, and this disk is none
        if (failed.kind != "LOCAL_DISK_FULL" &&
          !e.isInstanceOf[java.nio.channels.ClosedByInterruptException])
          engine.context.storageFailed("write_changelog", start, failed)
        throw failed
    }
  }

  /** Write all rows of a family that the log lacks. */
  private def writeWaiting(log: ChangelogWriter, f: Family): Unit =
    while (f.table.unloggedCount > 0) writeOldest(log, f)

  /** Write a block of the rows that the log lacks, or half of them. */
  private def writeBlock(log: ChangelogWriter, f: Family): Unit = {
    val half = math.max(1, mostWaiting / 2)
    while (f.table.unloggedCount > 0 && waits(f, half) && !log.isBlockFull) writeOldest(log, f)
  }

  private def writeOldest(log: ChangelogWriter, f: Family): Unit = {
    val i = f.table.takeUnlogged()
    prefetch(f, i)
    val wasTold = f.table.isTold(i)
    val op = append(log, f, i, whole = false)
    if (op != 0) {
      told += 1
      if (wasTold) toldAgain += 1
    }
    f.table.markLogged(i, op)
  }

  /** Write the touched rows of a family, beginning with number `from`, about `limitBytes` at most.
    * Returns the number of the first row left. */
  private def writeTouched(log: ChangelogWriter, f: Family, from: Int, limitBytes: Long,
      whole: Boolean): Int = {
    val count = f.table.touchedCount
    var i = from
    while (i < count && log.rawBytes < limitBytes) {
      prefetch(f, i)
      append(log, f, i, whole): Unit
      i += 1
    }
    i
  }

  private def prefetch(f: Family, i: Int): Unit = if (i % AheadRecords == 0)
    ahead += f.table.touchAhead(i, math.min(f.table.touchedCount, i + AheadRecords))

  /** Write what the batch did to the key of touched row `i`. Returns its kind, 0: nothing. */
  private def append(log: ChangelogWriter, f: Family, i: Int, whole: Boolean): Byte = {
    val table = f.table
    val now = table.touchedRecord(i)
    val slot = table.slotOf(now)
    val key = table.keyAddress(now)
    val keyLength = table.keyLength(now)
    val change = table.change(i, merges = f.shape.multi && !whole)
    if (change == Op.Put)
      log.put(slot, f, key, keyLength, table.valueAddress(now), table.valueLength(now))
    else if (change == Op.Merge) {
      val before = table.mergeBase(i)
      log.merge(slot, f, key, keyLength, table.valueAddress(now) + before,
        table.valueLength(now) - before)
    } else if (change == Op.Delete) log.delete(slot, f, key, keyLength)
    change
  }

  private def header(version: Long, id: String): ObjectNode = {
    val base = engine.committed
    val header = Json.obj().put("version", version).put("id", id)
      .put("lineage_base", if (base.emptyBase) base.version else base.lineageBase)
    val ids = header.putArray("lineage")
    if (base.emptyBase) ids.add("") else base.lineage.foreach(ids.add)
    header.put("empty_base", base.emptyBase).put("run_id", engine.context.runId)
    val store = engine.context.storeId
    header.putObject("store").put("operator", store.operatorId).put("partition", store.partitionId)
      .put("name", store.storeName)
    engine.layout.describe(header.putObject("key_groups"))
    describeFamilies(engine.families, header)
    engine.batch.keys.describe(header)
    header.put("created_by", s"millpond ${BuildInfo.millpondVersion}")
  }
}

/** A changelog that was written. The disk tier holds its first `spilledBlocks` blocks, which have
  * `spilledBytes` bytes before compression.
  * @param aheadNs time to write a part of it before the commit */
private[engine] final case class WrittenChangelog(file: File, fileBytes: Long, rawBytes: Long,
    spilledBlocks: Int, spilledBytes: Long, aheadNs: Long)

private[engine] object BatchLog {
  private val AheadRecords = 64
  private val LongBytes = 256L // of long values and lists, so many wait for each row that may wait
  private val SegmentBytes = 16L << 20 // a flush holds the raw bytes of one file in the heap

  /** @param asOf lists the families of this committed version; by default, those
    * of the running batch */
  def describeFamilies(
      families: Families, target: ObjectNode, asOf: Long = Family.Uncommitted): Unit = {
    val list = target.putArray("column_families")
    families.values.forEach(f =>
      if (f.createdAt <= asOf && (f.exists || f.table.touchedCount > 0)) {
        val one = list.addObject().put("name", f.name).put("id", f.id).put("kind", f.kind.name)
          .put("internal", f.shape.internal)
          .put("multi", f.shape.multi).put("encoding",
            if (f.shape.plainRows) "unsaferow" else "avro")
        if (f.wasRemoved(asOf)) one.put("removed", true)
        ()
      })
  }

  private def cannotWrite(
      file: File, e: java.io.IOException, isCopy: Boolean): MillpondException = {
    val text = s"the changelog $file cannot be written: ${e.getMessage}."
    if (isCopy) MillpondError.ofLocalFile(text, e)
    else MillpondError.ofFile(MillpondError.kindOf(e, full = "STORAGE_FULL"), text, e)
  }
}
