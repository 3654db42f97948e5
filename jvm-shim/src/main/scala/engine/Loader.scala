package org.apache.spark.sql.millpond.engine

import java.io.File

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{LocalDirs, MillpondError, MillpondException, Seams}
import org.apache.spark.sql.millpond.disk.Composer
import org.apache.spark.sql.millpond.rows.{KeyCount, KeyGroups, StoreLayout}

/** Brings a store to a version: asks the agent for a plan, opens the disk tier that the agent laid
  * out, replays the changelogs that follow it. */
private[millpond] object Loader extends Logging {

  /** @param register gives each family that the provider knows its codec again
    * @param from the snapshot to begin with, version and id; None: the newest that serves */
  def load(engine: StoreEngine, session: Session, version: Long, id: Option[String],
      loadEmpty: Boolean, register: JsonNode => Unit, from: Option[(Long, Option[String])] = None)
      : Unit = {
    val start = System.nanoTime
    // files that differed from the plan: the agent plans once more
    val surprises = mutable.Set.empty[String]
    var loaded = false
    while (!loaded) {
      val (generation, excluded) = held(engine, session) {
        engine.unload()
        engine.generation += 1
        (engine.generation, engine.excludedManifests.toSeq)
      }
      LocalDirs.delete(new File(engine.context.localDir, s"g${generation - 2}"))
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
          }
        catch {
          // no other snapshot serves: the next try may choose among all again
          case NonFatal(e) => engine.synchronized(engine.excludedManifests.clear()); throw e
        }
      Seams.at("load.opened")
      loaded = held(engine, session) {
        if (engine.generation != generation) throw MillpondError.storeClosed(engine.context.label)
        val done = attempt(engine, plan, version, loadEmpty, register, surprises)
        if (done) finish(engine, start)
        done
      }
    }
  }

  /** Work on the store under both locks, if the session still has it. */
  private def held[T](engine: StoreEngine, session: Session)(work: => T): T =
    engine.diskLock.during {
      engine.synchronized {
        engine.checkHeld(session)
        if (engine.closed) throw MillpondError.storeClosed(engine.context.label)
        work
      }
    }

  private def finish(engine: StoreEngine, start: Long): Unit = {
    engine.loaded = true
    engine.stale = false
    engine.metrics.restored(System.nanoTime - start)
    if (engine.disk != null && !engine.isHeap && engine.context.options.boolean("restore.warmUp"))
      engine.warmUp.start()
  }

  /** Errors that prove that a snapshot is damaged. After any other error Spark tries the load
    * again, with the same snapshot. */
  private val Damage = Set("SST_DAMAGED", "SST_MISSING", "MANIFEST_DAMAGED", "FORMAT_DAMAGED",
    "CHANGELOG_DAMAGED", "CHANGELOG_MISSING")

  /** Whether every file was as planned. Excludes a damaged snapshot. Gives files that were lost or
    * replaced a second try. */
  private def attempt(engine: StoreEngine, plan: JsonNode, version: Long, loadEmpty: Boolean,
      register: JsonNode => Unit, surprises: mutable.Set[String]): Boolean = {
    engine.isHeap = plan.get("backend").asText == "heap"
    val rule = plan.get("partition_key")
    val unscalable = if (rule.get("kind").asText == "unknown")
      Some(rule.path("reason").asText("the partition key of this operator is not known"))
    else None
    val partition = engine.context.storeId.partitionId
    engine.layout =
      new StoreLayout(KeyGroups(plan.get("max_parallelism").asInt, plan.get("base").asInt),
        plan.get("partitions").asInt, partition, plan.get("staging_dir").asText, unscalable)
    engine.layout.mark(plan.path("misplaced").asText(""))
    engine.version = version
    engine.emptyBase = loadEmpty
    engine.emptyAt = if (loadEmpty) version else -1L
    engine.composed = false
    engine.keys = KeyCount.empty(engine.layout)
    engine.rows.resetReads()
    engine.flushed = 0L
    engine.flushedKeys = engine.keys
    engine.lastSnapshot = None
    engine.manifestInUse = null
    engine.pending = Vector.empty
    engine.lineage.clear()
    val replay = new Replay(engine)
    val db = plan.get("db")
    if (db != null && !db.isNull) {
      engine.manifestInUse = db.get("manifest").asText
      val snapshotVersion = db.get("version").asLong
      engine.flushed = snapshotVersion
      try {
        engine.composed = db.has("sources")
        if (engine.composed) EngineTier.compose(engine, db)
        else {
          engine.diskDir = new File(db.get("dir").asText)
          engine.openDisk()
        }
        replay.addFamilies(db, snapshotVersion, onDisk = true)
        if (engine.isHeap) {
          engine.warmUp.loadAll()
          EngineTier.settle(engine, () => ())
          engine.closeDisk()
        }
        if (engine.composed) replay.foreign(Composer.changelogs(db), snapshotVersion)
        engine.keys = KeyCount.of(engine.layout, db)
        if (engine.composed && !engine.keys.isKnown && engine.exactKeys)
          engine.keys = EngineTier.count(engine)
      } catch {
        case e: MillpondException
          if e.kind == "LOCAL_FILES_LOST" && surprises.add(engine.manifestInUse) =>
          logWarning(s"store ${engine.context.label} is laid out once more: ${e.getMessage}")
          return false
        case e: MillpondException
          if (Damage(e.kind) || e.kind == "LOCAL_FILES_LOST") &&
            engine.excludedManifests.add(engine.manifestInUse) =>
          logWarning(
            s"store ${engine.context.label}: snapshot ${engine.manifestInUse} cannot be used, " +
              s"the load tries an older one: ${e.getMessage}")
          return false
      }
      engine.flushedKeys = engine.keys
      engine.lastSnapshot = Some(snapshotVersion -> db.get("id").asText)
    }
    try replay.run(plan.get("changelogs"))
    catch {
      case e: MillpondException if e.kind == "CHANGELOG_REPLACED" && surprises.add(e.kind) =>
        logInfo(s"store ${engine.context.label} is loaded again: ${e.getMessage}")
        return false
    }
    engine.lineageBase = plan.get("lineage_base").asLong
    engine.lineage ++= plan.get("lineage").elements.asScala.map(_.asText)
    engine.anchor = version
    engine.anchorId = engine.id
    engine.anchorKeys = engine.keys
    register(rule)
    engine.metrics.restoreBytes += plan.path("restore_bytes").asLong(0)
    true
  }
}
