package org.apache.spark.sql.millpond.engine

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.base.{MillpondError, Op, Seams}
import org.apache.spark.sql.millpond.changelog.{
  ChangelogCursor, ChangelogReader, PendingChangelog, RecordSink
}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Family, FamilyShape, KeyCount, RowFilter, StoreLayout}

/** Brings a store from its disk tier to a version: reads changelogs into memory. When memory is
  * full, the disk tier takes in all changelogs so far, and memory starts empty. It may: Spark asks
  * only for versions that are committed. Callers hold `diskLock` and the engine's monitor.
  *
  * @param isFull whether memory has no room for more rows
  * @param beforeGivingUp called before memory starts empty */
private[engine] final class Replay(context: StoreContext, layout: StoreLayout, families: Families,
    rows: Rows, tier: StoreTier, isFull: () => Boolean,
    beforeGivingUp: () => Unit = () => ()) {
  private var liveKeys = KeyCount.empty(layout)
  private var onDisk = Point(0L, "", liveKeys)
  private var inMemory = Vector.empty[PendingChangelog]
  private var last: JsonNode = null

  /** The live keys so far. */
  def keys: KeyCount = liveKeys
  /** The version of the disk tier. */
  def flushed: Point = onDisk
  /** The changelogs that only memory has. */
  def pending: Vector[PendingChangelog] = inMemory

  /** The header of the last changelog; null: there was none. */
  def newest: JsonNode = last

  /** The store is loaded, and newer changelogs follow. */
  def resume(now: Committed): Unit = {
    liveKeys = now.keys
    onDisk = now.flushed
    inMemory = now.pending
    // nothing can be taken back any more
    families.values.forEach(_.table.beginBatch())
  }

  /** The disk tier has a snapshot of this version. */
  def begin(version: Long, id: String): Unit = onDisk = Point(version, id, liveKeys)

  /** The snapshot has so many live keys. */
  def count(keys: KeyCount): Unit = {
    liveKeys = keys
    onDisk = onDisk.copy(keys = keys)
  }

  def addFamilies(described: JsonNode, version: Long, onDisk: Boolean): Unit =
    described.get("column_families").elements.asScala.foreach { f =>
      val (name, id, shape) = (f.get("name").asText, f.get("id").asInt, FamilyShape.of(f))
      forgetFormer(name, id, shape)
      if (families.get(name) == null) families.add(name, id, shape, onDisk): Unit
      // a removed family has only deletes left, and no more than when it was listed so first
      val family = families.get(name)
      val removed = f.path("removed").asBoolean(false)
      if (removed && !family.removed) family.removedAt = version
      family.removed = removed
      family.exists = true
      family.createdAt = math.min(family.createdAt, version)
    }

  /** A dropped family gives its name and its id to others once a snapshot holds its deletes. The
    * snapshot that this store begins with, or an older changelog, may still list it. If the store
    * kept it, the job could create it again beside the new owner of its id, and both would share
    * rows; or the rows of a new family with the same name and id would be read in its form. */
  private def forgetFormer(name: String, id: Int, shape: FamilyShape): Unit = {
    def isFormer(other: Family): Boolean = (other.name == name || other.id == id) &&
      !(other.name == name && other.id == id && other.shape == shape)
    families.all.find(f => isFormer(f) && !f.removed).foreach { other =>
      throw MillpondError.of("FORMAT_DAMAGED",
        s"store ${context.label}: the column family '${other.name}' (${other.id}, " +
          s"${other.shape}) was not removed before '$name' ($id, $shape) took its name or its id.")
    }
    families.forgetAll(isFormer)
  }

  /** Replays other partitions' changelogs from before the rescale. Disk tier plus these
    * equals `version`. */
  def foreign(changelogs: Seq[PendingChangelog], version: Long): Unit = if (changelogs.nonEmpty) {
    onDisk = onDisk.copy(version = version - 1)
    changelogs.foreach { c =>
      val cursor = new ChangelogReader(c.path).cursor()
      try {
        val id = cursor.header.get("id").asText
        if (id != c.id) throw MillpondError.changelogDamaged(c.path, s"it is $id, not ${c.id}")
        bring(c, cursor): Unit
      } finally cursor.close()
    }
    committed(version)
  }

  /** @param changelogs those of the plan, one for each version
    * @param parent the id on which the first of them must build; None: the plan knows that */
  def run(changelogs: JsonNode, parent: Option[String] = None): Unit =
    changelogs.elements.asScala.foreach(replay(_, if (last == null) parent else None))

  private def replay(described: JsonNode, parent: Option[String]): Unit = {
    val c = PendingChangelog(described.get("version").asLong, described.get("id").asText,
      described.get("path").asText, 0L)
    val cursor = new ChangelogReader(c.path).cursor()
    try {
      val header = cursor.header
      PendingChangelog.check(c, header, context.usesCommitIds)
      if (parent.exists(_ != header.get("lineage").elements.asScala.toSeq.last.asText))
        throw PendingChangelog.replaced(c)
      // an erasure wrote it since, with all rows: what was deleted below it would come back
      if (header.path("empty_base").asBoolean && (last != null || onDisk.version > 0L))
        throw PendingChangelog.replaced(c)
      last = header
      addFamilies(header, c.version, onDisk = false) // families may first appear in this changelog
      liveKeys = KeyCount.of(layout, header)
      mark(header.path("key_groups"))
      if (bring(c, cursor)) committed(c.version)
      else onDisk = Point(c.version, c.id, liveKeys)
    } finally cursor.close()
  }

  /** A key may have come into the wrong place after the version at which the store was loaded. */
  private def mark(groups: JsonNode): Unit =
    layout.mark(if (groups.path("scalable").asBoolean(true)) "" else groups.path("reason").asText)

  /** Bring a changelog to memory. False if memory was full: now the disk tier has this changelog
    * and all before it, and memory is empty. */
  private def bring(c: PendingChangelog, cursor: ChangelogCursor): Boolean = {
    val sink = new ReplaySink(c.path, c.filter)
    var fits = true
    while (fits && { Seams.at("load.replay"); cursor.next(sink) }) fits = !isFull()
    inMemory = inMemory :+ c.copy(memoryBytes = 2 * sink.bytes)
    if (!fits) toDisk()
    fits
  }

  private def committed(version: Long): Unit = families.values.forEach { f =>
    f.table.commitBatch(version.toInt)
    f.table.beginBatch()
  }

  private def toDisk(): Unit = {
    beforeGivingUp()
    families.giveUpRows()
    tier.ensureOpen()
    tier.settle()
    tier.flush().run(inMemory): Unit
    context.dropCopies(inMemory)
    inMemory = Vector.empty
  }

  /** @param filter the rows that are wanted; null: all */
  private final class ReplaySink(path: String, filter: RowFilter) extends RecordSink {
    private val byId = {
      val known = families.all.toSeq
      val table = new Array[Family](if (known.isEmpty) 0 else known.map(_.id).max + 1)
      known.foreach(f => table(f.id) = f)
      table
    }

    var bytes = 0L

    def record(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int,
        valueLength: Int): Unit = if (filter == null || filter.wants(block, keyAt, keyLength)) {
      bytes += keyLength + math.max(0, valueLength)
      val id = ((block(keyAt + 2) & 0xFF) << 8) | (block(keyAt + 3) & 0xFF)
      if (id >= byId.length || byId(id) == null)
        throw MillpondError.changelogDamaged(path,
          s"a record belongs to column family $id, which its header does not list")
      val f = byId(id)
      val at = Bytes.ArrayOffset + keyAt + 4L + f.keyLead
      val length = keyLength - f.keyExtra
      val slot = f.shape.slotIn(block, keyAt, keyLength)
      val hash = Bytes.hash(block, at, length)
      val found = f.table.find(block, at, length, hash)
      if (op == Op.Put)
        f.table.write(block, at, length, hash, found, slot, f.prefixLength(block, at), block,
          Bytes.ArrayOffset + valueAt + f.valueLead, valueLength - f.valueLead)
      else if (op == Op.Merge)
        rows.replayMerge(f, slot, block, at, length, hash, found, valueAt, valueLength)
      else if (found != 0L || !f.table.complete)
        f.table.write(block, at, length, hash, found, slot, f.prefixLength(block, at), null, 0L, -1)
    }
  }
}
