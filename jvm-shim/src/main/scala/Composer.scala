package org.apache.spark.sql.millpond

import java.io.File
import java.nio.ByteBuffer

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.unsafe.Platform

/** Puts the disk tier of a store together after a rescale: SSTs and changelogs of the old partitions, of which this store owns some slots.
  * The source with the most bytes is clipped in place, the rows of the others are copied beside it. */
private[millpond] object Composer {

  /** @param described `db` of the restore plan, with `sources` and `changelogs`. `engine.diskDir` becomes the new disk tier, which is open.
    * @return the live keys of the families that are the user's, -1 if they are not to be counted */
  def compose(engine: StoreEngine, described: JsonNode): Long = {
    val families = new FamilyOwnership(described.get("column_families"))
    val sources = described.get("sources").elements.asScala.map(s => (new File(s.get("dir").asText), s.get("bytes").asLong, OwnedSlots.of(s.get("slots")))).toSeq
    val target = new File(described.get("dir").asText)
    val base = if (sources.isEmpty) None else Some(sources.maxBy(_._2))
    base.foreach { case (dir, _, _) => if (!dir.renameTo(target)) throw MillpondError.internal(s"$dir cannot be renamed to $target") }
    if (base.isEmpty && !target.mkdirs()) throw MillpondError.internal(s"$target cannot be made")
    val disk = new DiskTier(target, Shared.disk(engine.context.options))
    engine.disk = disk
    engine.diskDir = target
    base.foreach { case (_, _, owned) => new Clip(disk, families, owned).run() }
    val workDir = engine.context.generationDir(engine.generation)
    sources.filterNot(base.contains).foreach { case (dir, _, owned) =>
      val source = new DiskTier(dir, Shared.disk(engine.context.options))
      try copy(source, disk, families, owned, workDir)
      finally source.close()
      LocalDirs.delete(dir)
    }
    val changelogs = described.get("changelogs").elements.asScala.map { c =>
      val owned = OwnedSlots.of(c.get("slots"))
      PendingChangelog(c.get("version").asLong, c.get("id").asText, c.get("path").asText, 0L, families.owns(owned))
    }.toSeq
    if (changelogs.nonEmpty) { new Flush(disk, workDir).run(changelogs); () }
    if (engine.exactKeys) count(disk, families) else -1L
  }

  private def copy(source: DiskTier, target: DiskTier, families: FamilyOwnership, owned: OwnedSlots, workDir: File): Unit = {
    val file = new File(workDir, s"source-${java.util.UUID.randomUUID}.sst")
    val writer = target.sstWriter(file)
    val rows = source.iterator(readAhead = true)
    var done = false
    try {
      // in key order: what the slots lead, then families that lie in the reserved slot
      (owned.ranges :+ (FamilyKind.ReservedSlot -> (FamilyKind.ReservedSlot + 1))).distinct.foreach { case (from, until) =>
        rows.seek(Array((from >>> 8).toByte, from.toByte))
        var going = rows.isValid
        while (going) {
          val key = rows.key
          if (FamilyOwnership.lead(key, 0) >= until) going = false
          else {
            if (families.owns(owned, key, 0, key.length)) { val value = rows.value; writer.put(key, 0, key.length, value, 0, value.length) }
            rows.next()
            going = rows.isValid
          }
        }
      }
      if (writer.entries > 0) { writer.finish(); done = true; target.ingest(file) }
    } finally {
      rows.close()
      if (!done) writer.abandon()
    }
  }

  private def count(disk: DiskTier, families: FamilyOwnership): Long = {
    val rows = disk.iterator(readAhead = true)
    val buffer = ByteBuffer.allocateDirect(4)
    val at = SparkLine.addressOf(buffer)
    var n = 0L
    try {
      rows.seekToFirst()
      while (rows.isValid) {
        buffer.clear()
        rows.keyInto(buffer)
        if (families.isUsers(((Platform.getByte(null, at + 2) & 0xFF) << 8) | (Platform.getByte(null, at + 3) & 0xFF))) n += 1
        rows.next()
      }
    } finally rows.close()
    n
  }
}

/** Ascending, disjoint half-open ranges of slots. */
private[millpond] final class OwnedSlots(val ranges: Vector[(Int, Int)]) {
  def contains(slot: Int): Boolean = {
    var low = 0
    var high = ranges.size - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val (from, until) = ranges(middle)
      if (slot < from) high = middle - 1
      else if (slot >= until) low = middle + 1
      else return true
    }
    false
  }

  /** The ranges between those owned, up to `end` (exclusive). */
  def gaps(end: Int): Vector[(Int, Int)] =
    ((0 -> 0) +: ranges :+ (end -> end)).sliding(2).collect { case Seq((_, from), (until, _)) if from < math.min(until, end) => from -> math.min(until, end) }.toVector
}

private[millpond] object OwnedSlots {
  def of(described: JsonNode): OwnedSlots = new OwnedSlots(described.elements.asScala.map(r => r.get(0).asInt -> r.get(1).asInt).toVector)
}

/** Tells of a physical key whether its slot is owned: it leads the key or ends it, by the kind of the column family. */
private[millpond] final class FamilyOwnership(described: JsonNode) {
  private val shapes = {
    val byId = new Array[FamilyShape](0x10000)
    described.elements.asScala.foreach(f => byId(f.get("id").asInt) = FamilyShape.of(f))
    byId
  }

  def owns(owned: OwnedSlots, key: Array[Byte], at: Int, length: Int): Boolean = {
    val shape = shapes(FamilyOwnership.family(key, at))
    shape != null && owned.contains(shape.slotIn(key, at, length))
  }
  def owns(owned: OwnedSlots): RowFilter = (key, at, length) => owns(owned, key, at, length)
  def isUsers(family: Int): Boolean = { val shape = shapes(family); shape != null && !shape.internal }
  /** Ids of the families whose slots lead their keys, and of those whose slots end them. */
  def leading: Seq[Int] = shapes.indices.filter(i => shapes(i) != null && !shapes(i).kind.crossKey)
  def trailing: Seq[Int] = shapes.indices.filter(i => shapes(i) != null && shapes(i).kind.crossKey)
}

private[millpond] object FamilyOwnership {
  def lead(key: Array[Byte], at: Int): Int = ((key(at) & 0xFF) << 8) | (key(at + 1) & 0xFF)
  def family(key: Array[Byte], at: Int): Int = ((key(at + 2) & 0xFF) << 8) | (key(at + 3) & 0xFF)
}

/** Which physical keys a reader of changelogs wants. */
private[millpond] trait RowFilter {
  def wants(key: Array[Byte], at: Int, length: Int): Boolean
}

/** Deletes what a disk tier does not own: by ranges of slots where they lead the keys, row by row where they end them. */
private[millpond] final class Clip(disk: DiskTier, families: FamilyOwnership, owned: OwnedSlots) {
  def run(): Unit = {
    val reserved = FamilyKind.ReservedSlot
    val ranges = owned.gaps(reserved).map { case (from, until) => slot(from) -> slot(until) } ++
      (if (owned.contains(reserved)) Nil else families.leading.map(f => family(f) -> family(f + 1)))
    disk.deleteRanges(ranges)
    families.trailing.foreach(id => disk.deleteRows(foreign(id)))
  }

  private def slot(number: Int): Array[Byte] = Array((number >>> 8).toByte, number.toByte)
  private def family(id: Int): Array[Byte] = if (id > 0xFFFF) Array(-1, -1, -1, -1, 0) else Array(-1, -1, (id >>> 8).toByte, id.toByte)

  private def foreign(id: Int): Iterator[Array[Byte]] = new Iterator[Array[Byte]] {
    private val rows = disk.iterator(readAhead = true)
    rows.seek(family(id))
    private var ahead = advance()

    private def advance(): Array[Byte] = {
      while (rows.isValid) {
        val key = rows.key
        if (FamilyOwnership.lead(key, 0) != FamilyKind.ReservedSlot || FamilyOwnership.family(key, 0) != id) { rows.close(); return null }
        rows.next()
        if (!families.owns(owned, key, 0, key.length)) return key
      }
      rows.close()
      null
    }
    override def hasNext: Boolean = ahead != null
    override def next(): Array[Byte] = { val key = ahead; ahead = advance(); key }
  }
}
