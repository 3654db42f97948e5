package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors
import org.apache.spark.sql.millpond.base.{
  LocalDirs, MillpondError, MillpondException, Seams, StoreLock
}
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.disk.DiskTier
import org.apache.spark.sql.millpond.memory.Table
import org.apache.spark.sql.millpond.rows.{Family, FamilyShape, KeyCount, StoreLayout}

/** The state of one store at one version, the changes of the running micro-batch, and both tiers.
  * Leads the store from version to version.
  *
  * Versions: `version` is what is committed and in memory. `anchor` is the newest version that
  * Spark proved committed by opening it for writing; only versions up to the anchor go to the disk
  * tier and into snapshots. So neither ever has a version whose attempt lost to another one.
  *
  * Sessions: one at a time holds the store. Each call names its session, and the engine checks it
  * under the monitor. So a thread that outlives its task can neither read nor write.
  *
  * Locks, in the order in which they are taken: `ending` lets one thread at a time end a batch, so
  * that no abort takes back a batch that a commit publishes. `diskLock` lets one at a time flush,
  * take a snapshot, reload or close. The engine's monitor guards all fields and the native memory;
  * every row operation takes it. Nobody holds the monitor or `diskLock` while files go to storage
  * or come from there.
  *
  * Parts: [[Rows]], [[Scans]], [[RunningBatch]] and [[WarmUp]] own their state, which nobody else
  * assigns. They take the monitor, or check that the caller has it. */
final class StoreEngine(val context: StoreContext) extends Logging {
  private[millpond] val diskLock = new StoreLock
  private[engine] val uploadLock = new StoreLock
  private val ending = new StoreLock
  private[millpond] val budget = Shared.budget(context.options)
  private[engine] val exactKeys = context.options.boolean("numKeys.exact")
  /** Whether all state stays in memory, and the disk tier exists only while a snapshot is made. */
  @volatile private[engine] var isHeap = false // of what was loaded
  val metrics = new StoreMetrics

  private[millpond] val families = new java.util.LinkedHashMap[String, Family]
  private[millpond] var disk: DiskTier = null
  // folder of this generation's disk tier, null while it has none
  private[engine] var diskDir: File = null
  @volatile private[millpond] var generation = 0
  @volatile private[millpond] var loaded = false
  @volatile private[millpond] var closed = false
  private[engine] var version = -1L
  private[millpond] var layout: StoreLayout = null
  // live user-visible keys: of the running batch, or of what is committed
  private[engine] var keys: KeyCount = null
  private var keysDetached: KeyCount = null
  // a rescale wrote the loaded snapshot; the next snapshot of this store is an ordinary one
  private[engine] var composed = false
  private[engine] var lineageBase = 0L
  private[engine] val lineage = mutable.ArrayBuffer.empty[String] // ids of lineageBase..version
  // those that the disk tier does not hold yet
  private[engine] var pending = Vector.empty[PendingChangelog]
  // another attempt replaced this store's version: the next opening loads from storage
  private[engine] var stale = false
  private[engine] var flushed = 0L
  private[engine] var flushedKeys: KeyCount = null
  // version and id of the newest snapshot on this lineage
  private[engine] var lastSnapshot: Option[(Long, String)] = None
  private[millpond] var anchor = 0L
  private[engine] var anchorKeys: KeyCount = null
  private[millpond] var anchorId = ""
  private[engine] var manifestInUse: String = null
  // manifests that proved damaged, until a new one replaces them
  private[engine] val excludedManifests = mutable.LinkedHashSet.empty[String]
  private[engine] val warmUp = new WarmUp(this)
  // the next changelog starts from empty state, whatever its version
  private[engine] var emptyBase = false
  // that version: other readers still read its rows, so it gets no snapshot
  private[engine] var emptyAt = -1L
  private[engine] val batch = new RunningBatch(this)
  // the disk tier holds a part of this version, which may not be committed yet
  private[engine] var spilledVersion = 0L
  // prepared before a spill; guarded by `diskLock`
  private var keptSnapshot: Option[Snapshots.Prepared] = None
  private[engine] var nothingToEvict = false // until the next flush
  private[engine] val batchLog = new BatchLog(this)
  private var familiesDetached = false // the last version created or removed a family
  private[millpond] val rows = new Rows(this)
  private[millpond] val scans = new Scans(this)
  budget.register()

  def id: String = lineage.lastOption.getOrElse("")
  /** Live user-visible keys; an estimate if they are not counted (`numKeys.exact`). */
  def keyCount: Long = synchronized {
    if (keys == null) 0L
    else if (keys.isKnown) keys.total
    else
      math.max(if (disk == null) 0L else disk.estimatedKeys,
        families.values.asScala.iterator.filter(!_.shape.internal).map(
          _.table.presentCount.toLong).sum)
  }

  /** All memory of the tables. */
  def usedBytes: Long = synchronized(total(_.usedBytes))
  /** The part of `usedBytes` that rows fill; the rest serves the next writes. */
  private[engine] def liveBytes: Long = total(_.liveBytes)
  private def total(of: Table => Long): Long = {
    var sum = 0L
    families.values.forEach(f => sum += of(f.table))
    sum
  }
  /** About how much memory dirty rows fill: those that the disk tier does not hold yet. */
  private[engine] def dirtyBytes: Long = synchronized(pending.iterator.map(_.memoryBytes).sum)

  // ---- sessions ---------------------------------------------------------------------------------

  private var holder: Session = null

  /** Serve the calls of this session, and no others. */
  def enter(session: Session): Unit = synchronized { holder = session }

  /** The session gives the store back, which undoes its uncommitted writes. Waits for a commit of
    * the session. Callers hold no lock. */
  def leave(session: Session): Unit = ending.during(synchronized {
    if (holder eq session)
      try undo()
      finally holder = null
  })

  /** Refuse a call of a session that has ended. Callers hold the monitor. */
  private[millpond] def checkHeld(session: Session): Unit =
    if (holder ne session) throw MillpondError.sessionEnded(context.label)

  private[engine] def checkUsable(session: Session): Unit = {
    checkHeld(session)
    if (closed || !loaded) throw MillpondError.storeClosed(context.label)
  }

  /** Refuse a write when no batch is open: it would become part of the next one. */
  private[engine] def checkWritable(session: Session): Unit = {
    checkUsable(session)
    if (!batch.isWriting) throw MillpondError.sessionEnded(context.label)
  }

  // ---- column families --------------------------------------------------------------------------

  private[millpond] def family(session: Session, name: String): Family = synchronized {
    checkUsable(session)
    val f = families.get(name)
    if (f == null || !f.isRegistered)
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily("access", name)
    f
  }

  def familyNames(session: Session): Set[String] = synchronized {
    checkUsable(session)
    families.values.asScala.iterator.filter(f => f.exists && !f.removed).map(_.name).toSet
  }

  /** Make a family known under an id; ids are durable (every changelog and manifest lists them). */
  private[millpond] def addFamily(
      name: String, id: Int, shape: FamilyShape, onDisk: Boolean): Family = {
    val f = new Family(name, id, shape, budget)
    if (onDisk) f.table.lack()
    families.put(name, f)
    f
  }

  /** Whether the family is part of the state, or its deletes still are. */
  private[millpond] def has(name: String): Boolean =
    synchronized { val f = families.get(name); f != null && (f.exists || f.removed) }

  /** Forget a family that was only registered, if its shape differs. It has no rows. */
  private[millpond] def forgetFamily(name: String, shape: FamilyShape): Unit = synchronized {
    val f = families.get(name)
    if (f != null && f.shape != shape && f.table.touchedCount == 0) {
      families.remove(name)
      f.close()
    }
  }

  /** The running batch makes the family part of the state. */
  private[millpond] def createFamily(session: Session, name: String): Unit = synchronized {
    checkWritable(session)
    val f = families.get(name)
    if (!f.exists || f.removed) {
      f.bringBack()
      batch.familyChanged()
    }
  }

  /** Delete all rows of a family. The store forgets the family once its deletes are on disk. False
    * if there is none. The family may be unregistered: a query that only drops a state variable
    * does not know its schema. */
  def removeFamily(session: Session, name: String): Boolean = synchronized {
    checkWritable(session)
    val f = families.get(name)
    if (f == null || f.removed || !f.exists) false
    else {
      rows.erase(f)
      f.remove()
      batch.familyChanged()
      true
    }
  }

  /** React to an unusable local copy. If it is damaged, the next attempt restores from an older
    * snapshot; if it was deleted, from the same one. */
  private[engine] def distrust(e: MillpondException): MillpondException = {
    if (e.kind == "LOCAL_FILES_LOST") loaded = false
    if (e.kind == "SST_DAMAGED" && manifestInUse != null) {
      excludedManifests += manifestInUse
      loaded = false
    }
    e
  }

  /** Whether a scan or the warm-up reads the disk tier row by row. Callers hold the monitor. */
  private[engine] def isRead: Boolean = scans.nonEmpty || warmUp.isReading

  // ---- versions ---------------------------------------------------------------------------------

  /** Whether memory has version `wanted`. Rolls back the last version if `wanted`
    * is the one before. */
  def reuse(session: Session, wanted: Long, wantedId: Option[String]): Boolean = synchronized {
    checkHeld(session)
    def same(a: String): Boolean = wantedId.forall(_ == a)
    if (closed || !loaded || batch.isOpen || stale) false
    else if (version == wanted && (wanted == 0 || same(id))) true
    else if (version == wanted + 1 && spilledVersion <= wanted && detachable &&
      (wanted == 0 || same(lineage(lineage.size - 2)))) {
      scans.closeAll() // the rollback frees records that a reader's scan may hold
      families.values.forEach(_.table.rollback())
      version -= 1
      lineage.remove(lineage.size - 1)
      keepPending(_.version <= version)
      keys = keysDetached
      true
    } else false
  }

  /** Forget the other changelogs. Where storage is not local, delete their local copies:
    * nobody else would. */
  private[engine] def keepPending(needed: PendingChangelog => Boolean): Unit = {
    val (kept, done) = pending.partition(needed)
    pending = kept
    done.map(c => new File(c.path)).filter(_.toPath.startsWith(context.localDir.toPath)).foreach(
      _.delete())
  }

  private def detachable: Boolean =
    lineage.size >= 2 && !familiesDetached && !families.isEmpty && families.values.asScala.forall(
      _.table.hasDetached)

  /** Begin a micro-batch on `version`: it is proven committed now. */
  def begin(session: Session): Unit = {
    synchronized {
      checkUsable(session)
      // another thread of the task writes already
      if (batch.isOpen) throw MillpondError.sessionEnded(context.label)
      batch.begin(StoreEngine.newId(), keys)
      anchor = version
      anchorId = id
      anchorKeys = keys
      keys = keys.copy
      // once a snapshot holds the deletes of a removed family, forget it: another
      // family may take its id
      families.values.removeIf { f =>
        val gone =
          f.removed && f.removedAt <= math.min(flushed, snapshotVersion) && !warmUp.isActive
        if (gone) f.close()
        gone
      }
      families.values.forEach { f =>
        f.removedBefore = f.removed
        f.table.beginBatch()
        if (!warmUp.isActive) f.table.purgeAbsent(flushed.toInt)
      }
    }
    if (budget.isExceeded) Pressure.atBegin(this)
  }

  /** Make the batch durable and return its version. After a failure an abort is still possible. */
  def commit(session: Session): Long = ending.during {
    val start = System.nanoTime
    val (next, from, staged, written) = synchronized {
      checkWritable(session)
      scans.closeAll()
      val staged = new File(layout.stagingDir,
        s".staging-${java.util.UUID.randomUUID.toString.replace("-", "")}")
      val written = batchLog.write(staged, version + 1, batch.id)
      batch.publish()
      (version + 1, generation, staged, written)
    }
    var done = false
    try {
      Seams.at("commit.publish")
      val published = context.call("publish_changelog", from)(_.put("version", next)
          .put("id", batch.id).put("staged", staged.getPath))
      Seams.at("commit.answered")
      synchronized {
        checkUsable(session)
        if (generation != from || !batch.isOpen) throw MillpondError.storeClosed(context.label)
        committed(next, published.get("path").asText, written)
      }
      done = true
    } finally {
      synchronized(batch.published())
      if (!done) staged.delete(): Unit
    }
    metrics.committed(written.fileBytes, System.nanoTime - start)
    next
  }

  /** The batch is durable as version `next`: memory follows. */
  private def committed(next: Long, path: String, written: WrittenChangelog): Unit = {
    scans.closeAll() // scans that began since: the commit frees what they read
    loaded = false // until memory has the version: a failure on the way leaves none loaded
    Seams.at("commit.published")
    families.values.forEach(_.table.commitBatch(next.toInt))
    version = next
    lineage += batch.id
    batchLog.clear()
    val changelog =
      PendingChangelog(next, batch.id, path, 2 * (written.rawBytes - written.spilledBytes))
    changelog.flushedBlocks = written.spilledBlocks
    pending = pending :+ changelog
    keysDetached = batch.keysAtStart
    batch.end()
    emptyBase = false
    families.values.forEach(_.committed(next))
    familiesDetached = batch.changedFamilies
    loaded = true
  }

  /** Take back what the running batch wrote. */
  def abort(session: Session): Unit = ending.during(synchronized { checkHeld(session); undo() })

  private def undo(): Unit = {
    var done = closed
    try
      if (!closed) {
        Seams.at("session.undo")
        scans.closeAll()
        if (batch.isOpen) {
          // the disk tier cannot take back a spill
          if (batchLog.isSpilled) { batchLog.clear(); loaded = false }
          families.values.forEach(_.table.abortBatch())
          families.values.forEach(_.undo())
          if (batch.changedFamilies) stale = true
          keys = batch.keysAtStart
        }
        done = true
      }
    finally {
      batch.end()
      if (!done) loaded = false // memory holds no version now: the next opening loads one
    }
  }

  // ---- end --------------------------------------------------------------------------------------

  /** Forget everything in memory. Callers hold `diskLock`. */
  private[engine] def unload(): Unit = synchronized {
    scans.closeAll()
    warmUp.end()
    families.values.forEach(_.close())
    families.clear()
    closeDisk()
    diskDir = null
    loaded = false
    batch.end()
    batchLog.clear()
    spilledVersion = 0L
    takeKept().foreach(_.drop())
    nothingToEvict = false
  }

  /** Open the disk tier, a new one if there is none. Callers hold `diskLock`. */
  private[engine] def openDisk(): Unit = synchronized {
    if (disk == null) {
      // RocksDB would create an empty one, and the next snapshot would lack all rows
      if (diskDir != null) DiskTier.checkFolder(diskDir)
      val dir = if (diskDir != null) diskDir
      else new File(context.generationDir(generation), s"db-$generation")
      try disk = new DiskTier(dir, Shared.disk(context.options))
      // delete a new tier that failed to open: the next try begins anew
      catch { case e: MillpondException => if (diskDir == null) LocalDirs.delete(dir); throw e }
      diskDir = dir
    }
  }

  private[engine] def closeDisk(): Unit =
    synchronized(if (disk != null) { disk.close(); disk = null })

  /** Keep a snapshot for maintenance to upload. Callers hold `diskLock`, here and in `takeKept`. */
  private[engine] def keep(snapshot: Snapshots.Prepared): Unit = {
    takeKept().foreach(_.drop())
    keptSnapshot = Some(snapshot)
  }
  private[engine] def takeKept(): Option[Snapshots.Prepared] = {
    val kept = keptSnapshot
    keptSnapshot = None
    kept
  }

  private[millpond] def snapshotVersion: Long = lastSnapshot.fold(0L)(_._1)

  /** A snapshot is in storage: the next changelogs name it as the base of their lineage. */
  private[engine] def snapshotPublished(at: Long, snapshotId: String, manifest: String): Unit = {
    lastSnapshot = Some(at -> snapshotId)
    manifestInUse = manifest
    excludedManifests -= manifest
    composed = false
    if (at > lineageBase) {
      lineage.remove(0, (at - lineageBase).toInt)
      lineageBase = at
    }
  }

  def close(): Unit = {
    diskLock.during {
      synchronized {
        if (!closed) {
          unload()
          closed = true
          budget.unregister()
        }
      }
    }
    dropLocalIfClosed()
  }

  /** Delete the local folder of a closed store. An upload still reads from it: then the upload
    * deletes it at its end. */
  private[engine] def dropLocalIfClosed(): Unit =
    if (closed) uploadLock.ifFree(LocalDirs.delete(context.localDir))
}

object StoreEngine {
  private val random = new java.security.SecureRandom
  def newId(): String = {
    val b = new Array[Byte](8)
    if (!Seams.fill(b)) random.nextBytes(b)
    java.util.HexFormat.of().formatHex(b)
  }
}
