package org.apache.spark.sql.millpond

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

/** Brings a store from its disk tier to a version, by changelogs: their rows come to memory. If that becomes too much, memory is given up
  * and the disk tier takes in all changelogs so far, as a flush would later: what Spark asks to open is proven committed.
  * For the load of a store; `diskLock` and the engine's monitor are held. */
private[millpond] final class Replay(engine: StoreEngine) {

  def addFamilies(described: JsonNode, version: Long, onDisk: Boolean): Unit =
    described.get("column_families").elements.asScala.foreach { f =>
      val known = engine.families.get(f.get("name").asText)
      // one that was removed may still be listed below: the name is another family's since
      if (known != null && known.id != f.get("id").asInt) { engine.families.remove(known.name); known.close() }
      if (known == null || known.id != f.get("id").asInt) engine.addFamily(f.get("name").asText, f.get("id").asInt, FamilyShape.of(f), onDisk)
      // of a removed family only the deletes are left
      val family = engine.families.get(f.get("name").asText)
      family.removed = f.path("removed").asBoolean(false)
      family.exists = true
      family.removedAt = version
      family.createdAt = math.min(family.createdAt, version)
    }

  /** What a rescale says of other partitions' changelogs: all together they are `version`, of which the disk tier has only the rest. */
  def foreign(changelogs: Seq[PendingChangelog], version: Long): Unit = if (changelogs.nonEmpty) {
    engine.flushed = version - 1
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

  /** @param changelogs as the plan lists them, one for each version */
  def run(changelogs: JsonNode): Unit = changelogs.elements.asScala.foreach { described =>
    val c = PendingChangelog(described.get("version").asLong, described.get("id").asText, described.get("path").asText, 0L)
    val cursor = new ChangelogReader(c.path).cursor()
    try {
      val header = cursor.header
      if (header.get("version").asLong == c.version && header.get("id").asText != c.id && !engine.context.usesCommitIds)
        throw PendingChangelog.replaced(c) // since it was planned; in format 2 its name says which one it is
      if (header.get("version").asLong != c.version || header.get("id").asText != c.id)
        throw MillpondError.changelogDamaged(c.path, s"it holds version ${header.get("version").asLong} (${header.get("id").asText}), not version ${c.version} (${c.id})")
      addFamilies(header, c.version, onDisk = false) // families may first appear in this changelog
      engine.keys = KeyCount.of(engine.layout, header)
      if (bring(c, cursor)) committed(c.version)
      else { engine.flushed = c.version; engine.flushedKeys = engine.keys }
    } finally cursor.close()
  }

  /** Bring a changelog to memory; false if the disk tier has it now, with all before it, and memory nothing. */
  private def bring(c: PendingChangelog, cursor: ChangelogCursor): Boolean = {
    val sink = new ReplaySink(c.path, c.filter)
    var fits = true
    while (fits && { Seams.at("load.replay"); cursor.next(sink) }) fits = !isTooMuch
    engine.pending = engine.pending :+ c.copy(memoryBytes = 2 * sink.bytes)
    if (!fits) toDisk()
    fits
  }

  private def committed(version: Long): Unit = engine.families.values.forEach { f => f.table.commitBatch(version.toInt); f.table.beginBatch() }

  /** A store that keeps all in memory refuses when it begins a batch. */
  private def isTooMuch: Boolean = !engine.isHeap && engine.budget.isExceeded && engine.usedBytes > engine.budget.fairShareBytes

  private def toDisk(): Unit = {
    engine.families.values.forEach { f =>
      f.table.close()
      f.table = new Table(engine.budget, f.kind.shape)
      f.table.lack()
    }
    engine.openDisk()
    Composer.settle(engine, () => ())
    new Flush(engine.disk, engine.context.generationDir(engine.generation), Flush.mostBytes(engine.budget)).run(engine.pending): Unit
    engine.keepPending(_ => false)
  }

  /** @param filter the rows that are wanted; null: all */
  private final class ReplaySink(path: String, filter: RowFilter) extends RecordSink {
    private val byId = {
      val known = engine.families.values.asScala.toSeq
      val table = new Array[Family](if (known.isEmpty) 0 else known.map(_.id).max + 1)
      known.foreach(f => table(f.id) = f)
      table
    }

    var bytes = 0L

    def record(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int, valueLength: Int): Unit = if (filter == null || filter.wants(block, keyAt, keyLength)) {
      bytes += keyLength + math.max(0, valueLength)
      val id = ((block(keyAt + 2) & 0xFF) << 8) | (block(keyAt + 3) & 0xFF)
      if (id >= byId.length || byId(id) == null) throw MillpondError.changelogDamaged(path, s"a record belongs to column family $id, which its header does not list")
      if (op == Op.DeleteRange) throw MillpondError.changelogDamaged(path, s"a record has kind $op")
      val f = byId(id)
      val at = Bytes.ArrayOffset + keyAt + 4L + f.keyLead
      val length = keyLength - f.keyExtra
      val slot = f.shape.slotIn(block, keyAt, keyLength)
      val hash = Bytes.hash(block, at, length)
      val found = f.table.find(block, at, length, hash)
      if (op == Op.Put)
        f.table.write(block, at, length, hash, found, slot, f.prefixLength(block, at), block, Bytes.ArrayOffset + valueAt + f.valueLead, valueLength - f.valueLead)
      else if (op == Op.Merge) engine.replayMerge(f, slot, block, at, length, hash, found, valueAt, valueLength)
      else if (found != 0L || !f.table.complete)
        f.table.write(block, at, length, hash, found, slot, f.prefixLength(block, at), null, 0L, -1)
    }
  }
}
