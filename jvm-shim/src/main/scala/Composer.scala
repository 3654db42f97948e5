package org.apache.spark.sql.millpond

import java.io.File
import java.nio.ByteBuffer

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.unsafe.Platform

/** Puts the disk tier of a store together after a rescale: SSTs of the old partitions, of which this store owns some slots.
  * The source with the most bytes is clipped in place. The others are read where they are, until the first flush copies their rows. */
private[millpond] object Composer {

  /** @param described `db` of the restore plan, with `sources`. `engine.diskDir` becomes the new disk tier, which is open. */
  def compose(engine: StoreEngine, described: JsonNode): Unit =
    compose(described, Shared.disk(engine.context.options)) { (disk, dir) =>
      engine.disk = disk
      engine.diskDir = dir
    }

  /** @param made gets the tier and its folder as soon as there is something to close */
  def compose(described: JsonNode, config: DiskConfig)(made: (DiskTier, File) => Unit): Unit = {
    val families = new FamilyOwnership(described.get("column_families"))
    val sources = described.get("sources").elements.asScala.map(s =>
      (new File(s.get("dir").asText), s.get("bytes").asLong, OwnedSlots.of(s.get("slots")))).toSeq
    val target = new File(described.get("dir").asText)
    val base = if (sources.isEmpty) None else Some(sources.maxBy(_._2))
    base.foreach { case (dir, _, _) =>
      if (!dir.renameTo(target)) throw MillpondError.internal(s"$dir cannot be renamed to $target")
    }
    if (base.isEmpty && !target.mkdirs()) throw MillpondError.internal(s"$target cannot be made")
    val disk = new DiskTier(target, config)
    made(disk, target)
    base.foreach { case (_, _, owned) => new Clip(disk, families, owned).run() }
    val others = Vector.newBuilder[TierSource]
    sources.filterNot(base.contains).foreach { case (dir, _, owned) =>
      others += new TierSource(new DiskTier(dir, config, readOnly = true), owned, families)
      disk.addSources(others.result())
    }
  }

  /** From here on the disk tier has all rows itself. `diskLock` is held. */
  def settle(engine: StoreEngine, giveWay: () => Unit): Unit = {
    settle(engine.disk, engine.context.generationDir(engine.generation), giveWay) { work =>
      engine.synchronized(work())
    }
    engine.synchronized(if (!engine.isRead) engine.disk.closeEmptied())
  }

  /** @param locked does something that no reader of the tier may come between */
  def settle(disk: DiskTier, workDir: => File, giveWay: () => Unit)(
      locked: (() => Unit) => Unit): Unit = if (disk.hasSources) {
    val copies = disk.copySources(workDir, giveWay)
    try locked(() => disk.replaceSources(copies))
    finally copies.foreach(_.delete()) // those that are part of the tier are not there any more
  }

  /** What of the old partitions' changelogs belongs to this store, in the order in which they apply: above its disk tier.
    * @param described `db` of the restore plan, with `changelogs` */
  def changelogs(described: JsonNode): Seq[PendingChangelog] = {
    val families = new FamilyOwnership(described.get("column_families"))
    described.get("changelogs").elements.asScala.map { c =>
      val owned = OwnedSlots.of(c.get("slots"))
      // whatever their own versions are, together they lead to the one that the rescale made
      PendingChangelog(described.get("version").asLong, c.get("id").asText, c.get("path").asText,
        0L, families.owns(owned))
    }.toSeq
  }

  /** Count the live keys of a store that was put together: of the disk tier those that memory does not know, and those of memory. */
  def count(engine: StoreEngine): KeyCount = {
    val counted = KeyCount.empty(engine.layout)
    engine.families.values.forEach { f =>
      if (!f.shape.internal) {
        val records = f.table.all()
        var record = records.next()
        while (record != 0L) {
          if (f.table.isPresent(record)) counted.add(f.table.slotOf(record), 1)
          record = records.next()
        }
      }
    }
    if (engine.disk != null) {
      val rows =
        new PhysicalKeys(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
      try while (rows.next()) {
          val f = rows.family
          if (f != null && !f.shape.internal && f.table.find(null, rows.at, rows.length,
              Bytes.hash(null, rows.at, rows.length)) == 0L) counted.add(rows.slot, 1)
        }
      finally rows.close()
    }
    counted
  }
}

/** The keys of a disk tier, one after the other, each in native memory until the next one; `family` is null for rows that belong to none
  * of the families. A table that is complete has no part in it: under its id there may still be rows of a family that was dropped. */
private[millpond] final class PhysicalKeys(scan: DiskScan, families: Iterable[Family]) {
  private val byId = new Array[Family](0x10000)
  families.foreach(f => if (!f.table.complete) byId(f.id) = f)
  private var keys = ByteBuffer.allocateDirect(256)
  private var begun = false
  var family: Family = null
  var at = 0L
  var length = 0
  var slot = 0

  def next(): Boolean = {
    if (begun) scan.next() else { scan.seekToFirst(); begun = true }
    val valid = scan.isValid
    if (valid) {
      keys.clear()
      var size = scan.keyInto(keys)
      if (size > keys.capacity) {
        keys = ByteBuffer.allocateDirect(RowLimit.bufferFor(size))
        size = scan.keyInto(keys)
      }
      val key = SparkLine.addressOf(keys)
      family = byId(unsigned(key + 2))
      if (family != null) {
        at = key + 4 + family.keyLead
        length = size - family.keyExtra
        slot = unsigned(if (family.shape.keyTrail == 0) key else key + size - 2)
      }
    }
    valid
  }

  private def unsigned(at: Long): Int =
    ((Platform.getByte(null, at) & 0xFF) << 8) | (Platform.getByte(null, at + 1) & 0xFF)
  def close(): Unit = scan.close()
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

  /** The first slot above `slot` that is owned; Int.MaxValue if there is none. */
  def above(slot: Int): Int = ranges.find(_._1 > slot).fold(Int.MaxValue)(_._1)

  /** The ranges between those owned, up to `end` (exclusive). */
  def gaps(end: Int): Vector[(Int, Int)] =
    ((0 -> 0) +: ranges :+ (end -> end)).sliding(2).collect {
      case Seq((_, from), (until, _)) if from < math.min(until, end) => from -> math.min(until, end)
    }.toVector
}

private[millpond] object OwnedSlots {
  def of(described: JsonNode): OwnedSlots =
    new OwnedSlots(described.elements.asScala.map(r => r.get(0).asInt -> r.get(1).asInt).toVector)
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
    val ranges = owned.gaps(reserved).map { case (from, until) =>
      slot(from) -> slot(until)
    } ++
      (if (owned.contains(reserved)) Nil else families.leading.map(f => family(f) -> family(f + 1)))
    disk.deleteRanges(ranges)
    families.trailing.foreach { id =>
      val rows = disk.iterator(readAhead = true)
      try disk.deleteRows(foreign(rows, id))
      finally rows.close()
    }
  }

  private def slot(number: Int): Array[Byte] = Array((number >>> 8).toByte, number.toByte)
  private def family(id: Int): Array[Byte] =
    if (id > 0xFFFF) Array(-1, -1, -1, -1, 0) else Array(-1, -1, (id >>> 8).toByte, id.toByte)

  private def foreign(rows: DiskScan, id: Int): Iterator[Array[Byte]] = new Iterator[Array[Byte]] {
    rows.seek(family(id))
    private var ahead = advance()

    private def advance(): Array[Byte] = {
      while (rows.isValid) {
        val key = rows.key
        val isOurs = FamilyOwnership.lead(key, 0) == FamilyKind.ReservedSlot
        if (!isOurs || FamilyOwnership.family(key, 0) != id) return null
        rows.next()
        if (!families.owns(owned, key, 0, key.length)) return key
      }
      null
    }
    override def hasNext: Boolean = ahead != null
    override def next(): Array[Byte] = { val key = ahead; ahead = advance(); key }
  }
}
