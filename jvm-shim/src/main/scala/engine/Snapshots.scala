package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{
  Json, LocalDirs, MillpondError, MillpondException, Seams, StoreLock
}
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.disk.DiskTier
import org.apache.spark.sql.millpond.memory.NativeHeap
import org.apache.spark.sql.millpond.observe.Counters
import org.apache.spark.sql.millpond.rows.{KeyCount, StoreLayout}

/** Flushes changelogs into the disk tier and publishes snapshots of it.
  *
  * @param spilledVersion a version of which the disk tier holds a part before it is committed
  * @param flushed the disk tier has all changelogs up to a point
  * @param published a snapshot is in storage: its version, id and manifest, and whether it may
  *     have rows that other partitions own. Called under the store's monitor */
private[millpond] final class Snapshots(store: StoreView, spilledVersion: () => Long,
    flushed: Point => Unit, published: (Long, String, String, Boolean) => Unit) extends Logging {
  import Snapshots._
  import store.{status, tier}

  private val uploadLock = new StoreLock
  private def background = store.shown.background
  private var kept: Option[Prepared] = None // made before a spill; guarded by `diskLock`

  /** Bring the disk tier up to the anchor. Reads files only. Callers hold `diskLock`, and publish
    * the events when they have given it back. */
  def flush(): Unit = background.during("flush") {
    val start = System.nanoTime
    val (target, changelogs) = store.synchronized {
      if (status.isStale || status.isClosed || !status.isLoaded)
        throw MillpondError.of("STORE_CLOSED",
          s"store ${store.context.label} must be loaded again; the task is retried.")
      // no read needs a new disk tier before memory drops its first rows
      orStale(tier.ensureOpen())
      val now = store.committed
      (now.anchor, now.pending.filter(_.version <= now.anchor.version))
    }
    orStale {
      DiskTier.checkFolder(tier.disk.dir)
      tier.settle()
      if (changelogs.nonEmpty) apply(changelogs)
    }
    Seams.at("flush.done")
    flushed(target)
    if (changelogs.nonEmpty)
      store.context.events.note("flushed", "version" -> target.version,
        "duration_ms" -> (System.nanoTime - start) / 1000000L, "changelogs" -> changelogs.size)
    NativeHeap.rest()
  }

  private def apply(changelogs: Seq[PendingChangelog]): Unit = {
    val flush = tier.flush()
    try { flush.run(changelogs); () }
    finally if (flush.isUncertain) status.outdated()
  }

  /** If the files of the store are gone, replaced or damaged, its next opening loads it from
    * storage; from an older snapshot if they are damaged. A batch that runs may still end. */
  private def orStale[T](work: => T): T =
    try work
    catch {
      case e: MillpondException
        if e.kind.startsWith("CHANGELOG_") || e.kind == "LOCAL_FILES_LOST" =>
        status.outdated()
        throw asLost(e)
      case e: MillpondException if e.kind == "SST_DAMAGED" =>
        store.synchronized(store.manifests.exclude()): Unit
        status.outdated()
        throw e
    }

  /** Where storage is not local, the changelogs here are copies. If one is gone, the next opening
    * fetches it from storage. */
  private def asLost(e: MillpondException): MillpondException = {
    val local = store.context.localDir.toPath
    def gone = store.committed.pending.map(c => new File(c.path)).find(f =>
      f.toPath.startsWith(local) && !f.isFile)
    (if (e.kind == "CHANGELOG_MISSING") gone else None)
      .fold(e)(f =>
        MillpondError.of("LOCAL_FILES_LOST", s"the local copy $f of a changelog was deleted.",
          cause = e))
  }

  /** Flush, then publish a snapshot of the newest version that is proven committed, if it is `due`
    * versions ahead of the last one. Returns the version of the new snapshot. Runs beside a batch,
    * once at a time in a store. */
  def snapshot(due: Int): Option[Long] =
    try uploadLock.during {
        // a snapshot should not hold rows that other partitions own
        val composed = store.committed.composed && !background.during("compact")(compact(due))
        prepare(due, composed).map(p => background.during("snapshot")(publish(p)))
      }
    finally {
      store.context.events.publish()
      leaveIfClosed()
    }

  private def publish(p: Prepared): Long =
    try {
      Seams.at("snapshot.upload")
      val start = System.nanoTime
      val answer = store.context.call("publish_snapshot", p.generation) { r =>
        r.put("version", p.version).put("id", p.id).put("db_checkpoint", p.dir.getPath)
          .put("partitions", p.layout.partitions).put("scalable", p.layout.scalable)
          .put("unscalable_reason", p.layout.unscalableReason)
        p.keys.describe(r)
        r.set[JsonNode]("files", p.files)
        r.set[JsonNode]("column_families", p.families.get("column_families"))
        ()
      }
      Seams.at("snapshot.uploaded")
      store.synchronized {
        if (status.serves(p.generation)) {
          published(p.version, p.id, answer.path("manifest").asText, p.composed)
          store.shown.snapshotMade(p.takenMs)
        }
      }
      store.metrics.snapshotTaken(answer.get("new_bytes").asLong,
        answer.get("reused_bytes").asLong, System.nanoTime - start)
      store.context.events.note("snapshot_made", "version" -> p.version,
        "duration_ms" -> (System.nanoTime - start) / 1000000L,
        "bytes" -> answer.get("new_bytes").asLong,
        "reused_bytes" -> answer.get("reused_bytes").asLong)
      p.version
    } finally p.drop()

  /** Whether a snapshot is due. None is due while the store is being loaded; the caller does
    * not wait for the load. */
  private def isDue(due: Int): Boolean = status.isLoaded && store.synchronized {
    val now = store.committed
    val (anchor, last) = (now.anchor.version, now.snapshotVersion)
    status.isLoaded && !status.isClosed && !status.isStale &&
    spilledVersion() <= anchor && anchor > math.max(last, now.emptyAt) &&
    anchor - last >= (if (now.composed) 1 else due)
  }

  /** Compact the disk tier of a store that a rescale put together. A batch may flush, spill
    * and read meanwhile. False if no snapshot is due. */
  private def compact(due: Int): Boolean = {
    val disk = store.diskLock.during(if (isDue(due)) { flush(); tier.disk }
      else null)
    if (disk != null) orStale(disk.compact())
    disk != null
  }

  private def prepare(due: Int, composed: Boolean): Option[Prepared] = if (!status.isLoaded) None
  else store.diskLock.during {
    val before = takeKept()
    if (!isDue(due)) before
    else
      try {
        before.foreach(_.drop())
        flush()
        Some(checkpoint(composed))
      } finally if (store.isHeap) tier.close()
  }

  /** Called before a spill. A spill mixes rows of the running batch into the disk tier, so
    * no snapshot can be made until the next batch begins. If one is due, this prepares it
    * now, of links; maintenance uploads it. Callers hold `diskLock`. The disk tier has all
    * that is committed. */
  def keepForLater(): Unit = if (isDue(store.context.conf.minDeltasForSnapshot))
    try {
      val prepared = checkpoint(store.committed.composed)
      dropKept()
      kept = Some(prepared)
    } catch { case NonFatal(e) => failed(e) }

  /** No snapshot was made; the next maintenance tries again. Callers publish the event. */
  private[millpond] def failed(e: Throwable): Unit = {
    Counters.snapshotFailures.increment()
    store.context.events.noteError("snapshot_failed", e, "version" -> store.shown.version,
      "snapshot_version" -> store.shown.snapshotVersion)
  }

  /** Delete the snapshot that waits for its upload. Callers hold `diskLock`. */
  def dropKept(): Unit = takeKept().foreach(_.drop())

  private def takeKept(): Option[Prepared] = {
    assert(store.diskLock.isMine, "without the lock of the disk tier")
    val before = kept
    kept = None
    before
  }

  /** The RocksDB checkpoint of the disk tier at version `flushed`. Callers hold `diskLock`. */
  private def checkpoint(composed: Boolean): Prepared = {
    Seams.at("snapshot.checkpoint")
    val generation = status.generation
    // not in the folder of the generation: an upload may take longer than the next two loads
    val dir = new File(store.context.localDir, s"snapshot-${java.util.UUID.randomUUID}")
    val families = Json.obj()
    val (now, layout) = store.synchronized {
      // a batch may have begun since the flush
      val now = store.committed
      BatchLog.describeFamilies(store.families, families, asOf = now.flushed.version)
      (now, store.layout)
    }
    val at = now.flushed
    Prepared(at.version, now.idOf(at.version), at.keys, generation, dir,
      orStale(tier.disk.snapshotTo(dir)), families, layout, composed)
  }

  /** Delete the local folder of a closed store, and let the agent forget the store. An upload still
    * needs both: then the upload does this at its end. So does whoever has asked the agent
    * something in the name of the store: the answer may have come after the end. */
  def leaveIfClosed(): Unit =
    if (status.isClosed && uploadLock.ifFree(LocalDirs.delete(store.context.localDir))) forget()

  private def forget(): Unit = if (Agent.isRunning)
    try store.context.tell("close", status.generation)(_ => ()): Unit
    catch {
      case NonFatal(e) =>
        logDebug(s"store ${store.context.label}: the agent keeps its cache: ${e.getMessage}")
    }
}

private[millpond] object Snapshots {
  /** A prepared snapshot: files that nobody changes.
    * @param composed rows may lie in them that other partitions own */
  private final case class Prepared(version: Long, id: String, keys: KeyCount,
      generation: Int, dir: File, files: ArrayNode, families: ObjectNode, layout: StoreLayout,
      composed: Boolean) {
    val takenMs: Long = System.currentTimeMillis
    def drop(): Unit = LocalDirs.delete(dir)
  }
}
