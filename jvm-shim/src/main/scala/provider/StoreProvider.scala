package org.apache.spark.sql.millpond.provider

import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{
  BuildInfo, Daemons, KeyPlacement, LocalDirs, MillpondError, MillpondException, Seams, TimeToLive
}
import org.apache.spark.sql.millpond.changelog.{ChangeFeed, PendingChangelog}
import org.apache.spark.sql.millpond.driver.Extension
import org.apache.spark.sql.millpond.engine.{
  Follower, Followers, Loader, Session, StoreContext, StoreEngine, StoreMetrics
}
import org.apache.spark.sql.millpond.rows.FamilyDefinition
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.NextIterator

/** The implementation of `MillpondStateStoreProvider`, one for each store and executor. Spark
  * decides when to open which version. The agent decides what that means on storage. The
  * [[StoreEngine]] holds the rows.
  *
  * One session at a time uses the engine: a task's read store and the write store
  * that it becomes. */
abstract class StoreProvider extends CompatibleProvider {
  @volatile private var id: StateStoreId = null
  private var context: StoreContext = null
  private var engineOrNull: StoreEngine = null
  private var familiesOrNull: ColumnFamilies = null
  // what followed the store here, until its first opening
  private var follower: Option[Follower] = None
  private var owner: Session = null
  private var closing = false
  private val snapshotWanted = new AtomicBoolean // by a commit, and not made yet
  private val collects = new AtomicBoolean // without waiting for Spark's maintenance, once

  override def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useColumnFamilies: Boolean,
      storeConf: StateStoreConf, hadoopConf: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    id = stateStoreId
    BuildInfo.check()
    // an operator with families never writes the default one, and opens it with changing schemas
    val default =
      if (useColumnFamilies)
        FamilyDefinition(keySchema, valueSchema, NoPrefixKeyStateEncoderSpec(keySchema),
          internal = false, multi = false)
      else
        FamilyDefinition(keySchema, valueSchema, keyStateEncoderSpec, internal = false,
          multi = useMultipleValuesPerKey)
    context = new StoreContext(stateStoreId, storeConf, hadoopConf)
    var prepared = false
    // Spark does not close a provider that failed here
    try { prepare(); prepared = true }
    finally if (!prepared) {
        Followers.closed(context)
        LocalDirs.delete(context.localDir)
      }
    familiesOrNull =
      new ColumnFamilies(engine, context, useColumnFamilies, stateSchemaProvider, default)
  }

  private def prepare(): Unit = {
    if (context.options.string("storage.uri").isDefined) {
      // Spark's state reader lists these folders to know the partitions. Here they hold no state.
      val folder = id.storeCheckpointLocation()
      folder.getFileSystem(context.hadoopConf).mkdirs(folder)
    }
    // last: nobody else would close a follower that was taken from there
    follower = Followers.opened(context)
    follower.foreach { f =>
      LocalDirs.delete(context.localDir) // the follower's are there already
      context = f.context
    }
    engineOrNull = follower.fold(new StoreEngine(context))(_.engine)
  }

  override def stateStoreId: StateStoreId = id
  private[millpond] def engine: StoreEngine = engineOrNull
  private[provider] def families: ColumnFamilies = familiesOrNull
  override private[provider] def conf: StateStoreConf = context.conf
  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = {
    BuildInfo.check() // on the driver: Spark asks for metrics before it starts a task
    Extension.demand()
    StoreMetrics.all
  }
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = {
    BuildInfo.check() // 4.2 asks for these first
    Seq(StoreMetrics.LastSnapshot)
  }

  // ---- opening ----------------------------------------------------------------------------------

  override def getReadStore(version: Long, uniqueId: Option[String]): StateStore = {
    // an operator that reads writes later: what it loads needs the room then, too
    if (StoreProvider.isOfRun(context.runId)) engine.writing()
    val session = open(version, uniqueId, loadEmpty = false)
    // what ends with the batch must be gone before an operator reads
    val ttl = TimeToLive.of(context.runId, id.operatorId)
    if (ttl.isDefined) beginBatch(session, version, uniqueId, ttl)
    new MillpondReadStore(this, session, version, uniqueId)
  }

  override def getStore(version: Long, uniqueId: Option[String], forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    engine.writing() // before it loads what the run before still holds
    val session = open(version, uniqueId, loadEmpty)
    begin(session, version, uniqueId, forceSnapshotOnCommit)
  }

  override def upgradeReadStoreToWriteStore(readStore: ReadStateStore, version: Long,
      uniqueId: Option[String], forceSnapshotOnCommit: Boolean): StateStore =
    readStore match {
      case r: MillpondReadStore
        if (r.provider eq this) && r.version == version && r.uniqueId == uniqueId && owns(
          r.session) =>
        engine.writing()
        begin(r.session, version, uniqueId, forceSnapshotOnCommit)
      case _ => getStore(version, uniqueId, forceSnapshotOnCommit, loadEmpty = false)
    }

  private def begin(session: Session, version: Long, uniqueId: Option[String], force: Boolean,
      readOnly: Boolean = false): StateStore = {
    if (!engine.hasBegun(session))
      beginBatch(session, version, uniqueId, TimeToLive.of(context.runId, id.operatorId))
    new MillpondStateStore(this, session, version, uniqueId, force, readOnly)
  }

  private def beginBatch(session: Session, version: Long, uniqueId: Option[String],
      ttl: Option[TimeToLive]): Unit =
    try {
      try begun(session)
      catch {
        // another attempt replaced a changelog of this store, or its local files were deleted:
        // load what is durable
        case e: MillpondException
          if e.kind == "CHANGELOG_REPLACED" || e.kind == "LOCAL_FILES_LOST" =>
          logInfo(s"store ${context.label} is loaded again: ${e.getMessage}")
          if (e.kind == "CHANGELOG_REPLACED") {
            context.events.note("attempt_lost", "version" -> version, "id" -> "")
            context.events.publish()
          }
          engine.abort(session)
          Loader.load(engine, session, version, if (version == 0) None else uniqueId,
            loadEmpty = false, families.registerAll)
          begun(session)
      }
      families.begin()
      JoinStores.begin(this, session, version, ttl)
    } catch { case NonFatal(e) => end(session); throw e }

  private def begun(session: Session): Unit = {
    KeyPlacement.of(context.runId, id.operatorId).foreach(place)
    engine.begin(session)
  }

  private[provider] def place(how: KeyPlacement): Unit =
    engine.synchronized(engine.layout.place(how))

  private def open(version: Long, uniqueId: Option[String], loadEmpty: Boolean,
      from: Option[(Long, Option[String])] = None): Session = {
    if (version < 0) throw QueryExecutionErrors.unexpectedStateStoreVersion(version)
    val session = acquire()
    var opened = false
    try {
      Agent.takeSpentNs()
      if (version > 0 && !loadEmpty) context.usesCommitIds = uniqueId.isDefined
      for { wanted <- uniqueId; lost <- engine.lostAttempt(version, wanted) } {
        context.events.note("attempt_lost", "version" -> version, "id" -> lost)
        context.events.publish()
      }
      val id = if (version == 0) None else uniqueId
      val taken = synchronized { try follower finally follower = None }
      val rule = taken.flatMap(_.handOver(session, version, id))
      rule.foreach(families.registerAll)
      if (loadEmpty || from.isDefined || !engine.reuse(session, version, id))
        Loader.load(engine, session, version, if (version == 0 || loadEmpty) None else uniqueId,
          loadEmpty, families.registerAll, from)
      opened = true
      session
    } catch {
      case e: MillpondException => throw e // the cause's message says more than Spark's wrapper
      case NonFatal(e) => throw StateStoreErrors.cannotLoadStore(e)
    } finally if (!opened) end(session)
  }

  // ---- replay -----------------------------------------------------------------------------------

  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long, readOnly: Boolean,
      snapshotId: Option[String], endId: Option[String]): StateStore =
    begin(openFrom(snapshotVersion, endVersion, snapshotId, endId), endVersion, endId,
      force = false, readOnly)

  override def replayReadStateFromSnapshot(snapshotVersion: Long, endVersion: Long,
      snapshotId: Option[String], endId: Option[String]): ReadStateStore =
    new MillpondReadStore(this, openFrom(snapshotVersion, endVersion, snapshotId, endId),
      endVersion, endId)

  private def openFrom(snapshotVersion: Long, endVersion: Long, snapshotId: Option[String],
      endId: Option[String]): Session = {
    if (snapshotVersion < 1) throw QueryExecutionErrors.unexpectedStateStoreVersion(snapshotVersion)
    if (endVersion < snapshotVersion)
      throw QueryExecutionErrors.unexpectedStateStoreVersion(endVersion)
    open(endVersion, endId, loadEmpty = false, Some(snapshotVersion -> snapshotId))
  }

  override protected def changes(startVersion: Long, endVersion: Long, name: String,
      endId: Option[String]): NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] = {
    if (startVersion < 1) throw QueryExecutionErrors.unexpectedStateStoreVersion(startVersion)
    if (endVersion < startVersion)
      throw QueryExecutionErrors.unexpectedStateStoreVersion(endVersion)
    val codec = families.codecOf(name).getOrElse(
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily("readChangeFeed", name))
    context.usesCommitIds = endId.isDefined
    val answer = context.call("change_feed", engine.status.generation) { r =>
      r.put("start_version", startVersion).put("version", endVersion)
      endId.foreach(r.put("id", _))
    }
    val changelogs = answer.get("changelogs").elements.asScala.map(c =>
      PendingChangelog(c.get("version").asLong, c.get("id").asText, c.get("path").asText, 0L)).toSeq
    new ChangeFeed(changelogs, name, codec, usesCommitIds = endId.isDefined)
  }

  // ---- sessions ---------------------------------------------------------------------------------

  /** Wait until the session before has ended: a killed task may linger while its
    * next attempt begins. */
  private def acquire(): Session = {
    val task = Option(TaskContext.get())
    val session = new Session(task.fold(-1L)(_.taskAttemptId()))
    val waitMs = context.options.int("lock.acquireTimeoutMs").toLong
    val deadline = System.nanoTime + waitMs * 1000000L
    // the same attempt asks again: its earlier session is void
    val before = synchronized(owner)
    if (before != null && session.attempt >= 0 && before.attempt == session.attempt) end(before)
    synchronized {
      while (owner != null && !closing) {
        val left = (deadline - System.nanoTime) / 1000000L
        if (left <= 0)
          throw MillpondError.of("STORE_LOCKED",
            s"task attempt ${owner.attempt} did not give back store ${context.label} " +
              s"within $waitMs ms.")
        wait(left)
      }
      if (closing) throw MillpondError.storeClosed(context.label)
      owner = session
      engine.enter(session)
    }
    task.foreach(_.addTaskCompletionListener[Unit](_ => end(session)))
    session
  }

  private[provider] def owns(session: Session): Boolean = synchronized(owner eq session)

  /** The session gives the store back, which undoes its uncommitted writes. Nobody else
    * gets the store before that. No lock is held: a commit of the session may still be on
    * its way to storage. */
  private[millpond] def end(session: Session): Unit = if (owns(session)) {
    try engine.leave(session)
    catch {
      case NonFatal(e) => logWarning(
          s"store ${context.label} will be loaded again: what its task wrote could not be " +
            s"taken back: ${e.getMessage}",
          e)
    } finally if (release(session)) engine.close()
  }

  /** Whether to close the store now: somebody asked for it while the session had the store. */
  private def release(session: Session): Boolean = synchronized {
    if (owner ne session) false // another thread of the task was faster
    else {
      owner = null
      families.ended()
      notifyAll()
      closing
    }
  }

  // ---- commits and metrics ----------------------------------------------------------------------

  private[provider] def commit(session: Session, forceSnapshot: Boolean): Long = {
    val version =
      try {
        val committed = engine.commit(session)
        families.committed()
        if (conf.commitValidationEnabled)
          StateStore.reportCommitToCoordinator(committed, id, context.hadoopConf)
        committed
      } catch {
        case e: MillpondException => throw e
        case NonFatal(e) =>
          throw QueryExecutionErrors.failedToCommitStateFileError(s"${context.label} of $id", e)
      } finally context.events.publish()
    if (forceSnapshot) wantSnapshot()
    if (version > conf.minVersionsToRetain) collectOnce()
    version
  }

  /** Spark asks for a snapshot, since it knows of none for many versions: the case of each query
    * whose first fifty batches are over before maintenance has run. The task does not wait, since
    * the first snapshot of a large state takes many seconds. */
  private def wantSnapshot(): Unit = if (snapshotWanted.compareAndSet(false, true))
    Seams.start(s"snapshot ${context.label}",
      () =>
        try snapshot(due = 1)
        finally snapshotWanted.set(false))(StoreProvider.pool.execute(_))

  /** Runs may all end before Spark's first maintenance, which comes after a minute. So the first
    * commit of a run collects, or files would grow without bound. The task does not wait, and one
    * store of an executor does so at a time. */
  private def collectOnce(): Unit = if (collects.compareAndSet(false, true))
    Seams.start(s"collection ${context.label}", () => doCleanupMaintenance())(
      StoreProvider.pool.execute(_))

  private[provider] def metrics: StateStoreMetrics = {
    val memory = engine.usedBytes
    StateStoreMetrics(
      engine.keyCount,
      memory,
      engine.metrics.take(memory, engine.diskBytes, Agent.takeSpentNs(), context.storageUse.take()),
      Map(StoreMetrics.LastSnapshot.withNewId(id.partitionId, id.storeName) -> engine.synchronized(
        engine.snapshotVersion))
    )
  }

  // ---- maintenance ------------------------------------------------------------------------------

  override def doMaintenance(): Unit = { doSnapshotMaintenance(); doCleanupMaintenance() }

  override def doSnapshotMaintenance(): Unit =
    snapshot(if (snapshotWanted.get) 1 else conf.minDeltasForSnapshot)

  /** Log errors of maintenance: an exception that left it would close the provider
    * under a running task. */
  private def snapshot(due: Int): Unit =
    try engine.snapshots.snapshot(due).foreach { version =>
        if (conf.reportSnapshotUploadLag)
          CoordinatorAccess.snapshotUploaded(StateStoreProviderId(id,
              java.util.UUID.fromString(context.runId)), version, System.currentTimeMillis)
      }
    catch {
      case NonFatal(e) => if (isNews) {
          engine.snapshots.failed(e)
          context.events.publish()
        }
    }

  /** Whether somebody wants to know that maintenance failed. */
  private def isNews = !engine.status.isClosed && !Agent.isStopping

  override def doCleanupMaintenance(): Unit =
    try {
      // asks twice: maintenance must not wait for a load
      (if (engine.status.isLoaded) { engine.keepYoung(); engine.anchor }
       else None).foreach { case (version, commitId) =>
        engine.shown.background.during("collect")(context.call("collect",
            engine.status.generation) { r =>
            r.put("anchor_version", version).put("force", false)
            if (context.usesCommitIds) r.put("anchor_id", commitId)
          })
      }
    } catch {
      case NonFatal(e) => if (isNews) {
          context.events.noteError("collection_failed", e, "version" -> engine.shown.version)
          context.events.publish()
        }
    } finally engine.snapshots.leaveIfClosed()

  override def close(): Unit = if (engineOrNull != null) {
    Followers.closed(context)
    val unused = synchronized { closing = true; notifyAll(); owner == null }
    // a task that has the store still asks the agent; at its end it closes the store
    if (unused) engine.close()
  }
}

private object StoreProvider {
  private lazy val pool = Daemons.one("millpond-maintenance")

  /** Whether the task of this thread belongs to this run of a query. Spark makes a run's id the
    * group of its jobs. A state reader has a run of its own, also within the task of a query. */
  private def isOfRun(runId: String): Boolean = Option(TaskContext.get()).exists(
    _.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID) == runId)
}
