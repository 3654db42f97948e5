package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Json, LocalDirs, MillpondError, MillpondException, Seams}
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.disk.DiskTier
import org.apache.spark.sql.millpond.rows.{KeyCount, StoreLayout}

/** Flushes changelogs into the disk tier and publishes snapshots of it. */
private[millpond] object Snapshots extends Logging {

  /** A prepared snapshot: files that nobody changes. */
  private[engine] final case class Prepared(version: Long, id: String,
      parent: Option[(Long, String)], keys: KeyCount, generation: Int, dir: File, files: ArrayNode,
      families: ObjectNode, layout: StoreLayout) {
    def drop(): Unit = LocalDirs.delete(dir)
  }

  /** Bring the disk tier up to the anchor. Reads files only. Callers hold `diskLock`. */
  def flush(engine: StoreEngine, giveWay: () => Unit = () => ()): Unit = {
    val (target, keys, changelogs) = engine.synchronized {
      if (engine.stale)
        throw MillpondError.of("STORE_CLOSED",
          s"store ${engine.context.label} must be loaded again; the task is retried.")
      // no read needs a new disk tier before memory drops its first rows
      orStale(engine)(engine.openDisk())
      (engine.anchor, engine.anchorKeys, engine.pending.filter(_.version <= engine.anchor))
    }
    orStale(engine) {
      DiskTier.checkFolder(engine.disk.dir)
      EngineTier.settle(engine, giveWay)
      if (changelogs.nonEmpty) apply(engine, changelogs, giveWay)
    }
    Seams.at("flush.done")
    engine.synchronized {
      engine.flushed = target
      engine.flushedKeys = keys
      engine.keepPending(_.version > target)
      engine.nothingToEvict = false
    }
  }

  private def apply(
      engine: StoreEngine, changelogs: Seq[PendingChangelog], giveWay: () => Unit): Unit = {
    val flush = EngineTier.flush(engine, giveWay)
    try { flush.run(changelogs); () }
    finally if (flush.isUncertain) engine.synchronized { engine.stale = true }
  }

  /** If the files of the store are gone or replaced, its next opening loads it from storage. */
  private def orStale[T](engine: StoreEngine)(work: => T): T =
    try work
    catch {
      case e: MillpondException
        if e.kind.startsWith("CHANGELOG_") || e.kind == "LOCAL_FILES_LOST" =>
        engine.synchronized { engine.stale = true }
        throw asLost(engine, e)
    }

  /** Where storage is not local, the changelogs here are copies. If one is gone, the next opening
    * fetches it from storage. */
  private def asLost(engine: StoreEngine, e: MillpondException): MillpondException = {
    val local = engine.context.localDir.toPath
    def gone = engine.synchronized(engine.pending).map(c => new File(c.path)).find(f =>
      f.toPath.startsWith(local) && !f.isFile)
    (if (e.kind == "CHANGELOG_MISSING") gone else None)
      .fold(e)(f =>
        MillpondError.of("LOCAL_FILES_LOST", s"the local copy $f of a changelog was deleted.",
          cause = e))
  }

  /** Flush, then publish a snapshot of the newest version that is proven committed, if it is `due`
    * versions ahead of the last one. Returns the version of the new snapshot. Runs beside a batch,
    * once at a time in a store. */
  def snapshot(engine: StoreEngine, due: Int): Option[Long] =
    try engine.uploadLock.during {
        // a snapshot must not hold rows that other partitions own
        if (engine.composed) compact(engine, due)
        prepare(engine, due).map(publish(engine, _))
      }
    finally engine.dropLocalIfClosed()

  private def publish(engine: StoreEngine, p: Prepared): Long =
    try {
      Seams.at("snapshot.upload")
      val start = System.nanoTime
      val answer = engine.context.call("publish_snapshot", p.generation) { r =>
        r.put("version", p.version).put("id", p.id).put("db_checkpoint", p.dir.getPath)
          .put("partitions", p.layout.partitions).put("scalable", p.layout.scalable)
          .put("unscalable_reason", p.layout.unscalableReason)
        p.keys.describe(r)
        p.parent.foreach { case (version, id) =>
          r.put("parent_id", id)
            .put("parent_version", version)
        }
        r.set[JsonNode]("files", p.files)
        r.set[JsonNode]("column_families", p.families.get("column_families"))
        ()
      }
      Seams.at("snapshot.uploaded")
      engine.synchronized {
        if (engine.generation == p.generation && engine.loaded)
          engine.snapshotPublished(p.version, p.id, answer.path("manifest").asText)
      }
      engine.metrics.snapshotTaken(answer.get("new_bytes").asLong,
        answer.get("reused_bytes").asLong, System.nanoTime - start)
      p.version
    } finally p.drop()

  /** Whether a snapshot is due. None is due while the store is being loaded; the caller does
    * not wait for the load. */
  private def isDue(engine: StoreEngine, due: Int): Boolean =
    engine.loaded && engine.synchronized(
      engine.loaded && !engine.closed && !engine.stale && engine.spilledVersion <= engine.anchor &&
        engine.anchor > math.max(engine.snapshotVersion,
          engine.emptyAt) && engine.anchor - engine.snapshotVersion >= (if (engine.composed) 1
                                                                        else due))

  /** Flush, and pause for commits unless a task waits for `diskLock`. */
  private def flushAside(engine: StoreEngine): Unit = {
    val throttle = Throttle.ofFlush()
    flush(engine, () => throttle.giveWay(Busy.commitsNeedAllCores && !engine.diskLock.isWanted))
  }

  /** Compact the disk tier of a store that a rescale put together. A batch may flush, spill
    * and read meanwhile. */
  private def compact(engine: StoreEngine, due: Int): Unit = {
    val disk = engine.diskLock.during(if (isDue(engine, due)) { flushAside(engine); engine.disk }
      else null)
    if (disk != null) orStale(engine)(disk.compact())
  }

  private def prepare(engine: StoreEngine, due: Int): Option[Prepared] = if (!engine.loaded) None
  else engine.diskLock.during {
    val kept = engine.takeKept()
    if (!isDue(engine, due)) kept
    else
      try {
        kept.foreach(_.drop())
        flushAside(engine)
        Some(checkpoint(engine))
      } finally if (engine.isHeap) engine.closeDisk()
  }

  /** Called before a spill. A spill mixes rows of the running batch into the disk tier, so
    * no snapshot can be made until the next batch begins. If one is due, this prepares it
    * now, of links; maintenance uploads it. Callers hold `diskLock`. The disk tier has all
    * that is committed. */
  def keepForLater(
      engine: StoreEngine): Unit = if (isDue(engine, engine.context.conf.minDeltasForSnapshot))
    try engine.keep(checkpoint(engine))
    catch {
      case NonFatal(e) => logWarning(
          s"store ${engine.context.label}: no snapshot was made, the next batch tries again: " +
            e.getMessage,
          e)
    }

  /** The RocksDB checkpoint of the disk tier at version `flushed`. Callers hold `diskLock`. */
  private def checkpoint(engine: StoreEngine): Prepared = {
    Seams.at("snapshot.checkpoint")
    val dir = new File(engine.context.generationDir(engine.generation),
      s"snapshot-${java.util.UUID.randomUUID}")
    val (version, id, keys, families, layout) = engine.synchronized {
      // a batch may have begun since the flush
      val f = Json.obj()
      BatchLog.describeFamilies(engine, f, asOf = engine.flushed)
      (engine.flushed, engine.lineage((engine.flushed - engine.lineageBase).toInt),
        engine.flushedKeys, f, engine.layout)
    }
    Prepared(version, id, engine.lastSnapshot, keys, engine.generation, dir,
      orStale(engine)(engine.disk.snapshotTo(dir)), families, layout)
  }
}
