package org.apache.spark.sql.millpond.engine

import java.io.File

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.millpond.base.{
  BuildInfo, Json, MillpondError, MillpondException, Op, Seams
}
import org.apache.spark.sql.millpond.changelog.{
  ChangelogReader, ChangelogWriter, Codec, PendingChangelog
}
import org.apache.spark.sql.millpond.rows.Family

/** Writes the changes of a micro-batch into files. A commit writes a changelog. A batch
  * that outgrows the memory budget writes segments of that changelog before. Callers hold
  * the engine's monitor. */
private[engine] final class BatchLog(engine: StoreEngine) {
  import BatchLog._

  private val codec = Codec.of(engine.context.options.string("changelog.codec").get)
  private var segments = Vector.empty[PendingChangelog]
  private var ahead = 0

  /** Whether the disk tier holds a part of the running batch. */
  def isSpilled: Boolean = segments.nonEmpty

  /** Write the changelog of the batch. Spilled segments come first, in blocks of their own. */
  def write(file: File, version: Long, id: String): WrittenChangelog =
    to(file, header(version, id), repeats) { writer =>
      segments.foreach { s => new ChangelogReader(s.path).read(writer.copy(_, _, _, _, _, _)); () }
      val (spilledBlocks, spilledBytes) = (writer.endBlock(), writer.rawBytes)
      engine.families.values.forEach(f =>
        writeTouched(writer, f, 0, Long.MaxValue, whole = false): Unit)
      WrittenChangelog(writer.finish(), writer.rawBytes, spilledBlocks, spilledBytes)
    }

  /** Write the changes so far into files of bounded size in `dir` and return them. The files
    * hold whole values, since the disk tier takes them in before the commit. They stay part of
    * the batch's changelog. */
  def addSegments(dir: File, version: Long, id: String): Seq[PendingChangelog] = {
    var added = Vector.empty[PendingChangelog]
    var done = false
    try {
      engine.families.values.forEach { f =>
        var next = 0
        while (next < f.table.touchedCount) {
          val file = new File(dir, s"segment-${java.util.UUID.randomUUID}")
          added :+= PendingChangelog(version, id, file.getPath, 0L)
          to(file, header(version, id)) { writer =>
            next =
              writeTouched(writer, f, next, Seams.stretch("segment", SegmentBytes), whole = true)
            writer.finish()
          }
        }
      }
      done = true
    } finally if (!done) delete(added) // the disk tier took none in: the batch is as it was
    segments ++= added
    added
  }

  /** The batch has ended. */
  def clear(): Unit = {
    delete(segments)
    segments = Vector.empty
  }

  private def delete(files: Seq[PendingChangelog]): Unit =
    files.foreach(s => new File(s.path).delete())

  /** Whether the changelog of the batch may have merges, or several records of a key: one from
    * before a spill, one from after. */
  private def repeats: Boolean = isSpilled || engine.families.values.stream.anyMatch(f =>
    f.shape.multi && f.table.touchedCount > 0)

  private def to[T](file: File, header: ObjectNode, repeats: Boolean = false)(
      fill: ChangelogWriter => T): T = {
    val start = System.nanoTime
    try {
      val writer = new ChangelogWriter(file, header, codec, repeats)
      var done = false
      // also if an interruption of the task ends the write
      try { val result = fill(writer); done = true; result }
      finally if (!done) writer.discard()
    } catch {
      // the folder belongs to this executor: the next opening makes it anew
      case e: java.io.IOException
        if file.toPath.startsWith(engine.context.localDir.toPath) &&
          !file.getParentFile.isDirectory =>
        engine.status.outdated()
        throw MillpondError.of("LOCAL_FILES_LOST",
          s"the folder of the changelog $file was deleted.", cause = e)
      case e: java.io.IOException =>
        val failed = cannotWrite(file, e)
        // a task that was killed says nothing about the storage
        if (!e.isInstanceOf[java.nio.channels.ClosedByInterruptException])
          engine.context.storageFailed("write_changelog", start, failed)
        throw failed
    }
  }

  /** Write the touched rows of a family, beginning with number `from`, about `limitBytes` at most.
    * Returns the number of the first row left. */
  private def writeTouched(writer: ChangelogWriter, f: Family, from: Int, limitBytes: Long,
      whole: Boolean): Int = {
    val table = f.table
    val count = table.touchedCount
    var i = from
    while (i < count && writer.rawBytes < limitBytes) {
      if (i % AheadRecords == 0) ahead += table.touchAhead(i, math.min(count, i + AheadRecords))
      val now = table.touchedRecord(i)
      val slot = table.slotOf(now)
      val key = table.keyAddress(now)
      val keyLength = table.keyLength(now)
      val change = table.change(i, merges = f.shape.multi && !whole)
      if (change == Op.Put)
        writer.put(slot, f, key, keyLength, table.valueAddress(now), table.valueLength(now))
      else if (change == Op.Merge) {
        val before = table.lengthBefore(i)
        writer.merge(slot, f, key, keyLength, table.valueAddress(now) + before,
          table.valueLength(now) - before)
      } else if (change == Op.Delete) writer.delete(slot, f, key, keyLength)
      i += 1
    }
    i
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
  * `spilledBytes` bytes before compression. */
private[engine] final case class WrittenChangelog(fileBytes: Long, rawBytes: Long,
    spilledBlocks: Int, spilledBytes: Long)

private[engine] object BatchLog {
  private val AheadRecords = 64
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

  private def cannotWrite(file: File, e: java.io.IOException): MillpondException = {
    val text = String.valueOf(e.getMessage)
    val kind = if (text.contains("No space left") || text.contains("quota")) "STORAGE_FULL"
    else if (text.contains("ermission denied") || text.contains("Read-only")) "STORAGE_DENIED"
    else "STORAGE_UNAVAILABLE"
    MillpondError.of(kind, s"the changelog $file cannot be written: $text.", cause = e)
  }
}
