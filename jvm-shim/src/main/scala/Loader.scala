package org.apache.spark.sql.millpond

import java.io.File

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging

/** Brings a store to a version: asks the agent for a plan, opens the disk tier that the agent laid out, replays the changelogs above it. */
private[millpond] object Loader extends Logging {

  /** @param register gives the families that the provider knows their codecs again
    * @param from the snapshot to begin with, version and id; None: the newest that serves */
  def load(engine: StoreEngine, session: MillpondStateStoreProvider.Session, version: Long, id: Option[String], loadEmpty: Boolean, register: JsonNode => Unit,
      from: Option[(Long, Option[String])] = None): Unit = engine.diskLock.during {
    engine.synchronized {
      engine.checkHeld(session)
      if (engine.closed) throw MillpondError.storeClosed(engine.context.label)
      val start = System.nanoTime
      var loaded = false
      while (!loaded) {
        engine.unload()
        engine.generation += 1
        LocalDirs.delete(new File(engine.context.localDir, s"g${engine.generation - 2}"))
        engine.context.generationDir(engine.generation) // its parent may have been deleted with all else of the store
        val plan = engine.context.call("open", engine.generation) { r =>
          r.put("version", version).put("load_empty", loadEmpty).put("generation", engine.generation)
          id.foreach(r.put("id", _))
          from.foreach { case (snapshot, snapshotId) => r.put("snapshot_version", snapshot); snapshotId.foreach(r.put("snapshot_id", _)) }
          val excluded = r.putArray("excluded")
          engine.excludedManifests.foreach(excluded.add)
        }
        loaded = attempt(engine, plan, version, loadEmpty, register)
      }
      engine.loaded = true
      engine.stale = false
      engine.metrics.restored(System.nanoTime - start)
      if (engine.disk != null && !engine.isHeap && engine.context.options.boolean("restore.warmUp")) WarmUp.start(engine)
    }
  }

  /** False if the plan's snapshot turned out to be damaged; it is excluded then. */
  private def attempt(engine: StoreEngine, plan: JsonNode, version: Long, loadEmpty: Boolean, register: JsonNode => Unit): Boolean = {
    engine.isHeap = plan.get("backend").asText == "heap"
    val rule = plan.get("partition_key")
    val unscalable = if (rule.get("kind").asText == "unknown") Some(rule.path("reason").asText("the partition key of this operator is not known")) else None
    val partition = engine.context.storeId.partitionId
    engine.layout = new StoreLayout(KeyGroups(plan.get("max_parallelism").asInt, plan.get("base").asInt), plan.get("partitions").asInt,
      partition, plan.get("staging_dir").asText, unscalable)
    engine.layout.mark(plan.path("misplaced").asText(""))
    engine.version = version
    engine.emptyBase = loadEmpty
    engine.emptyAt = if (loadEmpty) version else -1L
    engine.composed = false
    engine.keys = KeyCount.empty(engine.layout)
    engine.diskReads = 0L
    engine.flushed = 0L
    engine.flushedKeys = engine.keys
    engine.lastSnapshot = None
    engine.manifestInUse = null
    engine.pending = Vector.empty
    engine.lineage.clear()
    val db = plan.get("db")
    if (db != null && !db.isNull) {
      engine.manifestInUse = db.get("manifest").asText
      val snapshotVersion = db.get("version").asLong
      engine.flushed = snapshotVersion
      try {
        engine.composed = db.has("sources")
        if (engine.composed) Composer.compose(engine, db)
        else {
          engine.diskDir = new File(db.get("dir").asText)
          engine.openDisk()
        }
        addFamilies(engine, db, snapshotVersion, onDisk = true)
        if (engine.isHeap) {
          WarmUp.loadAll(engine)
          Composer.settle(engine, () => ())
          engine.closeDisk()
        }
        if (engine.composed) replayForeign(engine, Composer.changelogs(db), snapshotVersion)
        engine.keys = KeyCount.of(engine.layout, db)
        if (engine.composed && !engine.keys.isKnown && engine.exactKeys) engine.keys = Composer.count(engine)
      } catch {
        case e: MillpondException if e.kind != "MEMORY_EXHAUSTED" && engine.excludedManifests.add(engine.manifestInUse) =>
          logWarning(s"store ${engine.context.label}: the snapshot ${engine.manifestInUse} cannot be used, an older one is tried: ${e.getMessage}")
          return false
      }
      engine.flushedKeys = engine.keys
      engine.lastSnapshot = Some(snapshotVersion -> db.get("id").asText)
    }
    replay(engine, plan)
    engine.lineageBase = plan.get("lineage_base").asLong
    engine.lineage ++= plan.get("lineage").elements.asScala.map(_.asText)
    engine.anchor = version
    engine.anchorId = engine.id
    engine.anchorKeys = engine.keys
    register(rule)
    engine.metrics.restoreBytes += plan.path("restore_bytes").asLong(0)
    true
  }

  private def addFamilies(engine: StoreEngine, described: JsonNode, version: Long, onDisk: Boolean): Unit =
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
  private def replayForeign(engine: StoreEngine, changelogs: Seq[PendingChangelog], version: Long): Unit = if (changelogs.nonEmpty) {
    changelogs.foreach { c =>
      val sink = new ReplaySink(engine, c.path, c.filter)
      val header = new ChangelogReader(c.path).read(sink)
      if (header.get("id").asText != c.id) throw MillpondError.changelogDamaged(c.path, s"it is ${header.get("id").asText}, not ${c.id}")
      engine.pending = engine.pending :+ c.copy(memoryBytes = 2 * sink.bytes)
    }
    engine.families.values.forEach { f => f.table.commitBatch(version.toInt); f.table.beginBatch() }
    engine.flushed = version - 1
  }

  private def replay(engine: StoreEngine, plan: JsonNode): Unit =
    plan.get("changelogs").elements.asScala.foreach { c =>
      val path = c.get("path").asText
      val version = c.get("version").asLong
      // families may first appear in this changelog: its header comes before its records
      val reader = new ChangelogReader(path)
      addFamilies(engine, reader.header(), version, onDisk = false)
      val sink = new ReplaySink(engine, path, filter = null)
      val header = reader.read(sink)
      if (header.get("version").asLong != version || header.get("id").asText != c.get("id").asText)
        throw MillpondError.changelogDamaged(path, s"it holds version ${header.get("version").asLong} (${header.get("id").asText}), not version $version (${c.get("id").asText})")
      engine.families.values.forEach { f => f.table.commitBatch(version.toInt); f.table.beginBatch() }
      engine.keys = KeyCount.of(engine.layout, header)
      engine.pending = engine.pending :+ PendingChangelog(version, c.get("id").asText, path, 2 * sink.bytes)
    }

  /** @param filter the rows that are wanted; null: all */
  private final class ReplaySink(engine: StoreEngine, path: String, filter: RowFilter) extends RecordSink {
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
