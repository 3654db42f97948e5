package org.apache.spark.sql.millpond.engine

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors
import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException, Seams, StoreLock}
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.disk.{DiskScan, DiskTier}
import org.apache.spark.sql.millpond.memory.NativeHeap
import org.apache.spark.sql.millpond.rows.{Family, StoreLayout}

/** The state of one store at one version, the changes of the running micro-batch, and both tiers.
  * Leads the store from version to version.
  *
  * Versions: `committed` is what is committed and in memory. Its `anchor` is the newest version
  * that Spark proved committed by opening it for writing. Only versions up to the anchor go to the
  * disk tier and into snapshots. So neither ever has a version whose attempt lost to another one.
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
  * Parts: each owns its state, which nobody else assigns. They take the monitor, or check that the
  * caller has it. [[StoreStatus]]: may the store be used? [[Families]] and their tables, and
  * [[StoreTier]] hold the rows. [[Rows]] and [[Scans]] read and write them. [[RunningBatch]] is the
  * micro-batch. In the background work [[Snapshots]] and [[WarmUp]]; [[Pressure]] frees memory.
  *
  * @param follows whether it begins as a [[Follower]]: another executor has the store, and this one
  * keeps it ready */
final class StoreEngine(val context: StoreContext, follows: Boolean = false) extends StoreView
    with Logging {
  private[millpond] val diskLock = new StoreLock
  private val ending = new StoreLock
  private[millpond] val budget = Shared.budget(context.options)
  private[engine] val share = new budget.Share
  private[engine] val exactKeys = context.options.boolean("numKeys.exact")
  val metrics = new StoreMetrics
  private[millpond] val shown = new Shown(context, metrics, () => theCommitted)
  private[millpond] val status = new StoreStatus(this)
  private[millpond] val families = new Families(this, budget)
  private[engine] val tier =
    new StoreTier(this, context, status, families, budget, isRead = () => isRead)
  private[engine] val manifests = new ManifestUse
  private[engine] val batch = new RunningBatch(this)
  private[engine] val batchLog = new BatchLog(this)
  private[millpond] val rows = new Rows(this)
  private[millpond] val scans = new Scans(this)
  private[millpond] val ages = new Ages(this)
  private[engine] val warmUp =
    new WarmUp(this, context.label, status, families, tier, budget, shown.background,
      isPaused = () => scans.readsAll, isStandby = () => isStandby)
  private[engine] val lookupFill = new LookupFill(this, warmUp)
  private[millpond] val snapshots =
    new Snapshots(this, () => pressure.spilledVersion, flushed, snapshotPublished)
  private[engine] val pressure: Pressure = new Pressure(this, batch, batchLog, snapshots, warmUp)

  @volatile private var theCommitted = Committed.Nothing
  // of the last load, both
  private var theLayout: StoreLayout = null
  @volatile private var heap = false
  @volatile private var standby = follows
  private var writes = false // to say so twice does no harm
  if (!follows) enlist()

  private[engine] def isStandby: Boolean = standby

  private def enlist(): Unit = {
    share.take(true)
    shown.opened()
  }

  /** The store is this executor's own from now on. */
  private[millpond] def takeOver(): Unit = synchronized {
    if (standby && !status.isClosed) {
      standby = false
      enlist()
      if (status.isLoaded && tier.isOpen && context.options.boolean("restore.warmUp") &&
        !warmUp.isActive && !families.all.forall(_.table.complete))
        warmUp.start()
    }
  }

  /** Between two versions: a store that only follows gives back what others need. Callers hold no
    * lock. */
  private[engine] def giveWay(session: Session): Unit = {
    val mustShrink = budget.isExceeded
    if (mustShrink || committed.pending.size >= context.conf.minDeltasForSnapshot)
      try diskLock.during {
          synchronized { checkHeld(session) }
          snapshots.flush()
          synchronized {
            checkHeld(session)
            if (mustShrink) {
              warmUp.end()
              families.giveUpRows()
            } else if (!warmUp.isActive)
              families.values.forEach(_.table.purgeAbsent(committed.flushed.version.toInt))
          }
        }
      finally context.events.publish()
  }

  private[engine] def committed: Committed = theCommitted
  private[millpond] def layout: StoreLayout = theLayout
  private[engine] def isHeap: Boolean = heap
  private[millpond] def disk: DiskTier = tier.disk

  def id: String = committed.id
  private[millpond] def snapshotVersion: Long = committed.snapshotVersion

  /** Version and id of the newest version that is proven committed; None while there is none. */
  private[millpond] def anchor: Option[(Long, String)] = synchronized {
    val point = committed.anchor
    if (status.isLoaded && !status.isClosed && point.version > 0) Some(point.version -> point.id)
    else None
  }

  /** Live user-visible keys; an estimate if they are not counted (`numKeys.exact`). */
  def keyCount: Long = synchronized {
    val keys = if (batch.isOpen) batch.keys else committed.keys
    if (keys == null) 0L
    else if (keys.isKnown) keys.total
    else math.max(if (tier.isOpen) disk.estimatedKeys else 0L, families.presentCount)
  }

  /** All memory of the tables. */
  def usedBytes: Long = synchronized(families.usedBytes)

  /** The space of the disk tier. */
  private[millpond] def diskBytes: Long = synchronized(if (tier.isOpen) disk.localBytes else 0L)

  // ---- sessions ---------------------------------------------------------------------------------

  private var holder: Session = null
  private var superseded = false // by another run, while a session had the store

  /** Serve the calls of this session, and no others. */
  def enter(session: Session): Unit = synchronized {
    holder = session
    shown.entered(session)
  }

  /** The session gives the store back, which undoes its uncommitted writes. Waits for a commit of
    * the session. Callers hold no lock. */
  def leave(session: Session): Unit =
    try ending.during(synchronized {
        if (holder eq session)
          try undo()
          finally holder = null
      })
    finally if (synchronized(superseded && holder == null)) Runs.end(this)

  /** Refuse a call of a session that has ended. Callers hold the monitor. */
  private[millpond] def checkHeld(session: Session): Unit =
    if (holder ne session) throw MillpondError.sessionEnded(context.label)

  private[engine] def checkUsable(session: Session): Unit = {
    checkHeld(session)
    if (status.isClosed || !status.isLoaded) throw MillpondError.storeClosed(context.label)
  }

  /** Refuse a write when no batch is open: it would become part of the next one. Refuse the writes
    * and the commit of a batch that only an abort can end. */
  private[engine] def checkWritable(session: Session): Unit = {
    checkUsable(session)
    if (!batch.isWriting) throw MillpondError.sessionEnded(context.label)
    if (batch.spoiltBy != null) throw MillpondError.batchSpoilt(context.label, batch.spoiltBy)
  }

  /** Do work of a call that has changed rows, or changes many. If it fails, only an abort can end
    * the batch: user code may catch the error, and would commit what it believes is not there. */
  private[engine] def wholly(session: Session)(work: => Unit): Unit =
    try work
    catch {
      case e: Throwable =>
        // the batch of the next task is none of its business
        synchronized(if (holder eq session) batch.spoil(e))
        throw e
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
    families.all.iterator.filter(f => f.exists && !f.removed).map(_.name).toSet
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
  def removeFamily(session: Session, name: String): Boolean = {
    val f = synchronized {
      checkWritable(session)
      families.get(name)
    }
    if (f == null || f.removed || !f.exists) false
    else {
      rows.erase(session, f)
      synchronized {
        checkWritable(session)
        f.remove()
        batch.familyChanged()
      }
      true
    }
  }

  /** React to an unusable local copy. If it is damaged, the next attempt restores from an older
    * snapshot, or from changelogs alone; if it was deleted, from the same one. */
  private[engine] def distrust(e: MillpondException): MillpondException = {
    if (e.kind == "SST_DAMAGED") manifests.exclude(): Unit
    if (e.kind == "SST_DAMAGED" || e.kind == "LOCAL_FILES_LOST") status.unloaded()
    e
  }

  /** The rows of the disk tier. Callers hold the monitor. */
  private[engine] def diskRows(readAhead: Boolean): DiskScan =
    try disk.iterator(readAhead)
    catch { case e: MillpondException => throw distrust(e) }

  /** Whether a scan or the warm-up reads the disk tier row by row. Callers hold the monitor. */
  private def isRead: Boolean = scans.nonEmpty || warmUp.isReading

  // ---- versions ---------------------------------------------------------------------------------

  /** Whether memory has version `wanted`. Rolls back the last version if `wanted`
    * is the one before. */
  def reuse(session: Session, wanted: Long, wantedId: Option[String]): Boolean = synchronized {
    checkHeld(session)
    def same(a: String): Boolean = wantedId.forall(_ == a)
    val now = committed
    if (status.isClosed || !status.isLoaded || batch.isOpen || status.isStale) false
    // it begins anew in memory alone: storage has the rows of before
    else if (wanted > 0 && wanted == now.emptyAt) false
    else if (now.version == wanted && (wanted == 0 || same(now.id))) true
    else if (now.version == wanted + 1 && pressure.spilledVersion <= wanted && now.canGoBack &&
      !families.all.isEmpty && families.all.forall(_.table.hasDetached) &&
      (wanted == 0 || same(now.idBefore))) {
      scans.closeAll() // the rollback frees records that a reader's scan may hold
      families.values.forEach(_.table.rollback())
      swap(now.back)
      true
    } else false
  }

  /** The id that this store has for a version that Spark knows by another one: its attempt lost. */
  def lostAttempt(version: Long, wanted: String): Option[String] = synchronized {
    val now = committed
    val has = status.isLoaded && !status.isClosed && version > 0 && now.version >= version &&
      version >= now.lineageBase
    if (has) Some(now.idOf(version)).filter(id => id.nonEmpty && id != wanted) else None
  }

  /** The store has another version, or knows more of the same. Nobody else needs the local copies
    * of changelogs that are no longer pending. */
  private def swap(next: Committed): Unit = {
    assert(Thread.holdsLock(this), "without the store's monitor")
    val before = theCommitted.pending
    theCommitted = next
    if (next.pending.size < before.size) context.dropCopies(before.diff(next.pending))
  }

  /** A load begins. Callers hold the monitor, here and in `loaded`. */
  private[engine] def beginAs(newLayout: StoreLayout, isHeap: Boolean): Unit = {
    if (!standby) share.take(true)
    theLayout = newLayout
    heap = isHeap
  }

  /** Both tiers together have this version. */
  private[engine] def loaded(version: Committed): Unit = theCommitted = version

  /** The disk tier has all changelogs up to `point`. */
  private def flushed(point: Point): Unit = synchronized {
    swap(committed.flushedTo(point))
    pressure.flushed()
    lookupFill.flushed()
  }

  /** Whether a micro-batch of the session has begun. */
  private[millpond] def hasBegun(session: Session): Boolean = synchronized {
    checkHeld(session)
    batch.isOpen
  }

  /** Begin a micro-batch on `version`: it is proven committed now. */
  def begin(session: Session): Unit = {
    synchronized {
      checkUsable(session)
      // another thread of the task writes already
      if (batch.isOpen) throw MillpondError.sessionEnded(context.label)
      batch.begin(StoreEngine.newId(), committed.keys)
      swap(committed.proven)
      val flushed = committed.flushed.version
      // once a snapshot holds the deletes of a removed family, forget it: another
      // family may take its id
      families.forgetAll(f => f.removed && f.removedAt <= math.min(flushed, snapshotVersion))
      families.values.forEach { f =>
        f.removedBefore = f.removed
        f.table.beginBatch()
        if (!warmUp.isActive) f.table.purgeAbsent(flushed.toInt)
      }
    }
    pressure.atBegin()
  }

  /** Make the batch durable and return its version. After a failure an abort is still possible. */
  def commit(session: Session): Long = ending.during {
    val start = System.nanoTime
    if (pressure.isCrowded) {
      synchronized {
        checkWritable(session)
        scans.closeAll() // what they read could not be dropped
      }
      pressure.beforeCommit()
    }
    val (next, from, written, sync) = synchronized {
      checkWritable(session)
      scans.closeAll()
      val next = committed.version + 1
      val written = batchLog.write(next, batch.id)
      batch.publish()
      (next, status.generation, written, batchLog.syncing)
    }
    var done = false
    try {
      Seams.at("commit.publish")
      val published = context.call("publish_changelog", from)(_.put("version", next)
          .put("id", batch.id).put("staged", written.file.getPath))
      sync.foreach(_.await())
      Seams.at("commit.answered")
      synchronized {
        checkUsable(session)
        if (status.generation != from || !batch.isOpen)
          throw MillpondError.storeClosed(context.label)
        batchLog.checkSynced(written.file)
        follow(next, published.get("path").asText, written)
      }
      done = true
    } finally {
      synchronized {
        batch.published()
        if (!done) batchLog.unpublished()
      }
      if (!done) written.file.delete(): Unit
    }
    metrics.committed(written, System.nanoTime - start, synchronized(ages.takeEnded()))
    shown.batchDone()
    next
  }

  /** The batch is durable as version `next`: memory follows. */
  private def follow(next: Long, path: String, written: WrittenChangelog): Unit = {
    scans.closeAll() // scans that began since: the commit frees what they read
    status.changing {
      Seams.at("commit.published")
      families.values.forEach(_.table.commitBatch(next.toInt))
      batchLog.clear()
      val changelog =
        PendingChangelog(next, batch.id, path, 2 * (written.rawBytes - written.spilledBytes))
      changelog.flushedBlocks = written.spilledBlocks
      swap(theCommitted.next(changelog, batch.keys, detached = !batch.changedFamilies))
      batch.end()
      families.values.forEach(_.committed(next))
    }
  }

  /** Maintenance is about to collect, here or on another executor. */
  private[millpond] def keepYoung(): Unit = {
    val unused = synchronized {
      batchLog.keepYoung()
      lookupFill.refresh()
      tier.disk
    }
    if (unused != null) unused.rest()
    NativeHeap.rest()
  }

  /** Take back what the running batch wrote. */
  def abort(session: Session): Unit = ending.during(synchronized { checkHeld(session); undo() })

  private def undo(): Unit = {
    var done = status.isClosed
    try
      if (!status.isClosed) {
        Seams.at("session.undo")
        scans.closeAll()
        if (batch.isOpen) {
          // the disk tier cannot take back a spill
          if (batchLog.isSpilled) status.unloaded()
          batchLog.clear()
          families.values.forEach(_.table.abortBatch())
          families.values.forEach(_.undo())
          if (batch.changedFamilies) status.outdated()
        }
        done = true
      }
    finally {
      batch.end()
      if (!done) status.unloaded()
    }
  }

  // ---- end --------------------------------------------------------------------------------------

  /** Forget everything in memory. Callers hold `diskLock`. */
  private[engine] def unload(): Unit = synchronized {
    scans.closeAll()
    warmUp.end()
    families.forgetAll(_ => true)
    tier.forget()
    status.unloaded()
    share.empty()
    theCommitted = Committed.Nothing
    batch.end()
    batchLog.clear()
    snapshots.dropKept()
    pressure.reset()
  }

  /** A session of this engine's run is about to write. Callers hold no lock. */
  private[millpond] def writing(): Unit = if (!writes) { writes = true; Runs.writes(this) }

  /** Another run writes to the store. What this engine holds would take the share of that one. If
    * a task of its own run has the store, this is done when the task gives it back. One that comes
    * later loads the store again. */
  private[engine] def giveUp(): Unit = diskLock.during(dropUnlessHeld())

  /** The same, unless somebody works on the disk tier. Returns whether nobody does. */
  private[engine] def giveUpIfFree(): Boolean = diskLock.ifFree(dropUnlessHeld())

  private def dropUnlessHeld(): Unit = {
    val dropped = synchronized {
      val isUnused = holder == null && !status.isClosed
      superseded = holder != null
      if (isUnused) {
        unload()
        share.take(false)
        metrics.emptied()
        shown.emptied()
      }
      isUnused
    }
    // the disk may have no room for those of two runs
    if (dropped) context.dropDatabases(status.generation)
  }

  /** A snapshot is in storage. Callers hold the monitor. */
  private def snapshotPublished(
      at: Long, snapshotId: String, manifest: String, composed: Boolean): Unit = {
    manifests.published(manifest)
    swap(committed.withSnapshot(at, snapshotId, composed))
  }

  def close(): Unit = {
    diskLock.during {
      synchronized {
        if (!status.isClosed) {
          unload()
          status.close()
          share.take(false)
          Runs.closed(this)
          metrics.emptied()
          shown.closed()
        }
      }
    }
    snapshots.leaveIfClosed()
  }
}

object StoreEngine {
  private val random = new java.security.SecureRandom
  def newId(): String = {
    val b = new Array[Byte](8)
    if (!Seams.fill(b)) random.nextBytes(b)
    java.util.HexFormat.of().formatHex(b)
  }
}
