package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException, Seams}
import org.apache.spark.sql.millpond.disk.Composer
import org.apache.spark.sql.millpond.rows.{KeyCount, KeyGroups, StoreLayout}

/** Brings a store to a version: asks the agent for a plan, opens the disk tier that the agent laid
  * out, replays the changelogs that follow it. */
private[millpond] object Loader extends Logging {

  /** @param register gives each family that the provider knows its codec again
    * @param from the snapshot to begin with, version and id; None: the newest that serves */
  def load(engine: StoreEngine, session: Session, version: Long, id: Option[String],
      loadEmpty: Boolean, register: JsonNode => Unit, from: Option[(Long, Option[String])] = None)
      : Unit =
    try engine.shown.background.during("restore")(
        bring(engine, session, version, id, loadEmpty, register, from))
    finally asked(engine)

  /** Bring a store that is loaded at an older version to this one, by the changelogs between. Much
    * cheaper than a load, which is still possible if this fails.
    * @return false: the store must be loaded */
  def catchUp(engine: StoreEngine, session: Session, version: Long, id: Option[String]): Boolean =
    try {
      val before = engine.synchronized {
        engine.checkHeld(session)
        val now = engine.committed
        if (isSound(engine) && now.version > 0 && now.version < version)
          Some(now -> engine.status.generation)
        else None
      }
      before.exists { case (now, generation) =>
        val answer = engine.context.call("follow", generation) { r =>
          r.put("after_version", now.version).put("version", version)
          id.foreach(r.put("id", _))
        }
        Seams.at("follow.answered")
        held(engine, session) {
          // a flush beside this call changes what is on disk, not what the store is at
          val at = engine.committed
          val same = isSound(engine) && engine.status.generation == generation &&
            at.version == now.version && at.id == now.id
          if (same) orForget(engine)(replayOn(engine, at, answer.get("changelogs")))
          same
        }
      }
    } catch {
      case e: MillpondException if Unfollowable(e.kind) =>
        logInfo(s"store ${engine.context.label} cannot follow to version $version and is loaded: " +
          e.getMessage)
        false
    } finally asked(engine)

  /** The agent was asked, perhaps for a store that was closed meanwhile. */
  private def asked(engine: StoreEngine): Unit = {
    engine.context.events.publish()
    engine.snapshots.leaveIfClosed()
  }

  /** Whether the store has a version, and no batch runs. Callers hold the monitor. */
  private def isSound(engine: StoreEngine): Boolean =
    engine.status.isLoaded && !engine.status.isClosed && !engine.status.isStale &&
      !engine.batch.isOpen

  private def replayOn(engine: StoreEngine, now: Committed, changelogs: JsonNode): Unit = {
    val replay = new Replay(engine.context, engine.layout, engine.families, engine.rows,
      engine.tier, isFull = () => engine.pressure.isFull,
      beforeGivingUp = () => engine.warmUp.end())
    val ids = changelogs.elements.asScala.map(_.get("id").asText).toVector
    engine.status.changing {
      replay.resume(now)
      replay.run(changelogs, Some(now.id))
      val next = now.caughtUp(replay, replay.newest, ids)
      engine.loaded(next)
      if (next.snapshotVersion != now.snapshotVersion) engine.shown.snapshotSeen()
    }
  }

  private def bring(engine: StoreEngine, session: Session, version: Long, id: Option[String],
      loadEmpty: Boolean, register: JsonNode => Unit, from: Option[(Long, Option[String])])
      : Unit = {
    val start = System.nanoTime
    // files that differed from the plan: the agent plans once more
    val surprises = mutable.Set.empty[String]
    var loaded = false
    while (!loaded) {
      val (generation, excluded) = held(engine, session) {
        engine.unload()
        (engine.status.beginLoad(), engine.manifests.excluded)
      }
      dropBefore(engine, generation)
      // `close` may have deleted its parent
      engine.context.generationDir(generation)
      Seams.at("load.open")
      // the agent brings files from storage; meanwhile no lock is held, and the store is not loaded
      val plan =
        try engine.context.call("open", generation) { r =>
            r.put("version", version).put("load_empty", loadEmpty).put("generation", generation)
            id.foreach(r.put("id", _))
            from.foreach { case (snapshot, snapshotId) =>
              r.put("snapshot_version", snapshot)
              snapshotId.foreach(r.put("snapshot_id", _))
            }
            val names = r.putArray("excluded")
            excluded.foreach(names.add)
            if (surprises.contains(DamagedChangelog)) r.put("listed", true)
          }
        catch {
          // no other snapshot serves: the next try may choose among all again
          case NonFatal(e) => engine.synchronized(engine.manifests.trustAll()); throw e
        }
      Seams.at("load.opened")
      loaded = held(engine, session) {
        if (engine.status.generation != generation)
          throw MillpondError.storeClosed(engine.context.label)
        orForget(engine) {
          val done = attempt(engine, plan, version, loadEmpty, register, surprises)
          if (done) finish(engine, start, plan)
          done
        }
      }
      // the agent may have made the folder of an earlier load after it was deleted
      engine.context.dropDatabases(generation - 1)
    }
  }

  /** Delete what the loads before this one left. The files of the disk tier go at once, since the
    * space for two is seldom there: `unload` has closed the tier and all that read from it, and a
    * snapshot on its way has links of its own. So does what a fetch has written that failed, or
    * that nobody waits for: without its folder it ends. What else is in the folder may still be
    * read by a change feed, so it goes with the next load. Callers hold no lock. */
  private def dropBefore(engine: StoreEngine, generation: Int): Unit = {
    engine.context.dropGenerations(generation - 2)
    engine.context.dropDatabases(generation - 1)
  }

  /** Lead the store to a version. If that fails, others need the memory of the rows that came. */
  private def orForget[T](engine: StoreEngine)(work: => T): T =
    try work
    finally if (!engine.status.isLoaded) engine.unload()

  /** Work on the store under both locks, if the session still has it. */
  private def held[T](engine: StoreEngine, session: Session)(work: => T): T =
    engine.diskLock.during {
      engine.synchronized {
        engine.checkHeld(session)
        if (engine.status.isClosed) throw MillpondError.storeClosed(engine.context.label)
        work
      }
    }

  private def finish(engine: StoreEngine, start: Long, plan: JsonNode): Unit = {
    engine.status.loadDone()
    engine.shown.loaded(plan.path("db").path("created_ms").asLong(0), System.nanoTime - start)
    engine.metrics.restored(System.nanoTime - start)
    engine.context.events.note("restore_done", "version" -> engine.committed.version,
      "duration_ms" -> (System.nanoTime - start) / 1000000L,
      "bytes" -> plan.path("restore_bytes").asLong(0),
      "snapshot_version" -> engine.committed.snapshotVersion,
      "changelogs" -> plan.get("changelogs").size)
    if (engine.tier.isOpen && engine.context.options.boolean("restore.warmUp"))
      engine.warmUp.start()
  }

  /** Errors that prove that a snapshot is damaged. After any other error Spark tries the load
    * again, with the same snapshot. */
  private val Damage = Set("SST_DAMAGED", "SST_MISSING", "MANIFEST_DAMAGED", "FORMAT_DAMAGED",
    "CHANGELOG_DAMAGED", "CHANGELOG_MISSING")

  private val DamagedChangelog = "CHANGELOG_DAMAGED"

  /** Errors that say that the changelogs between do not serve. */
  private val Unfollowable =
    Damage ++ Set("CHANGELOG_REPLACED", "LOCAL_FILES_LOST", "VERSION_NOT_FOUND", "VERSION_EXPIRED")

  private def passedOver(engine: StoreEngine, e: MillpondException, version: Long,
      manifest: String): Unit = engine.context.events.noteError("snapshot_passed_over", e,
    "version" -> version, "manifest" -> manifest)

  /** Whether every file was as planned. Excludes a damaged snapshot. Gives files that were lost or
    * replaced a second try. */
  private def attempt(engine: StoreEngine, plan: JsonNode, version: Long, loadEmpty: Boolean,
      register: JsonNode => Unit, surprises: mutable.Set[String]): Boolean = {
    val isHeap = plan.get("backend").asText == "heap"
    val rule = plan.get("partition_key")
    val layout = layoutOf(plan, rule, engine.context.storeId.partitionId)
    if (isHeap && engine.isStandby)
      // all its rows would be in memory, and take what this executor's own stores need
      throw MillpondError.of("INVALID_ARGUMENT",
        s"store ${engine.context.label} has the backend heap, which no executor follows.")
    engine.beginAs(layout, isHeap)
    val db = Option(plan.get("db")).filterNot(_.isNull)
    engine.manifests.use(db.map(_.get("manifest").asText))
    val replay = new Replay(engine.context, layout, engine.families, engine.rows, engine.tier,
      isFull = () => engine.pressure.isFull)
    val manifest = engine.manifests.inUse.getOrElse("")
    try db.foreach(bringSnapshot(engine, replay, _, layout))
    catch {
      case e: MillpondException if e.kind == "LOCAL_FILES_LOST" && surprises.add(manifest) =>
        logWarning(s"store ${engine.context.label}: the agent lays out its files again: " +
          e.getMessage)
        return false
      case e: MillpondException
        if (Damage(e.kind) || e.kind == "LOCAL_FILES_LOST") && engine.manifests.exclude() =>
        passedOver(engine, e, version, manifest)
        return false
    }
    try replay.run(plan.get("changelogs"))
    catch {
      case e: MillpondException if e.kind == "CHANGELOG_REPLACED" && surprises.add(e.kind) =>
        logInfo(s"store ${engine.context.label} is loaded again: ${e.getMessage}")
        return false
      // without a listing the agent sees no snapshot that is newer than the last changelog: with it
      // nobody may need this one
      case e: MillpondException
        if e.kind == DamagedChangelog && !plan.get("listed").asBoolean && surprises.add(e.kind) =>
        logWarning(s"store ${engine.context.label} is loaded again: ${e.getMessage}")
        return false
      // a list that grew is read from the snapshot's files
      case e: MillpondException if e.kind == "SST_DAMAGED" && engine.manifests.exclude() =>
        passedOver(engine, e, version, manifest)
        return false
    }
    val lineage = plan.get("lineage").elements.asScala.map(_.asText).toVector
    // versions that a rescale put together, that an interrupted erasure left, or of runs with
    // numKeys.exact=false may have no count
    val keys =
      if (replay.keys.isKnown || !engine.exactKeys) replay.keys else engine.tier.count(layout)
    val flushed = replay.flushed
    engine.loaded(Committed(
        version = version,
        lineageBase = plan.get("lineage_base").asLong,
        lineage = lineage,
        keys = keys,
        keysBefore = None,
        pending = replay.pending,
        anchor = Point(version, lineage.lastOption.getOrElse(""), keys),
        flushed = if (flushed.version == version) flushed.copy(keys = keys) else flushed,
        snapshot = db.map(d => d.get("version").asLong -> d.get("id").asText),
        composed = db.exists(_.has("sources")),
        emptyBase = loadEmpty,
        emptyAt = if (loadEmpty) version else -1L
      ))
    register(rule)
    engine.metrics.restoreBytes += plan.path("restore_bytes").asLong(0)
    true
  }

  private def layoutOf(plan: JsonNode, rule: JsonNode, partition: Int): StoreLayout = {
    val unscalable = if (rule.get("kind").asText == "unknown")
      Some(rule.path("reason").asText("the partition key of this operator is not known"))
    else None
    val layout =
      new StoreLayout(KeyGroups(plan.get("max_parallelism").asInt, plan.get("base").asInt),
        plan.get("partitions").asInt, partition, plan.get("staging_dir").asText, unscalable)
    layout.mark(plan.path("misplaced").asText(""))
    layout
  }

  /** Open the disk tier with the SSTs of a snapshot.
    * @param db its part of the restore plan */
  private def bringSnapshot(
      engine: StoreEngine, replay: Replay, db: JsonNode, layout: StoreLayout): Unit = {
    val version = db.get("version").asLong
    val composed = db.has("sources")
    val tier = engine.tier
    replay.begin(version, db.get("id").asText)
    if (composed) tier.compose(db) else tier.openAt(new File(db.get("dir").asText))
    replay.addFamilies(db, version, onDisk = true)
    if (engine.isHeap) {
      engine.warmUp.loadAll(() => engine.pressure.refuse())
      tier.settle()
      tier.close()
    }
    if (composed) replay.foreign(Composer.changelogs(db), version)
    replay.count(KeyCount.of(layout, db))
  }
}
