package org.apache.spark.sql.millpond.engine

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{Clock, Daemons, Json, MillpondException, Seams}
import org.apache.spark.sql.millpond.observe.{Counters, Observed, Reports}

/** The stores of other executors that this one follows: it has them loaded, and reads each
  * changelog that is committed. The driver says which, in its answers to this executor's reports.
  * If a task comes for one of them, its provider takes it over.
  *
  * A follower needs no schema: files name the families, and the codecs come with the provider. Its
  * settings are those of a store of the same operator that this executor has itself.
  *
  * One thread does all the work: following costs an executor one core at most. It holds a store
  * only as a session does, so a task that takes the store over ends it at its next step. */
private[millpond] object Followers extends Logging {
  private final case class Key(runId: String, operator: Long, partition: Int, name: String) {
    def label: String = s"$operator/$partition/$name"
  }

  private final case class Wanted(key: Key, version: Long, id: Option[String])

  /** How often a store failed in a row, when it did so last, and for how long it is left alone. It
    * is sound again once it was followed for as long. */
  private final case class Failure(times: Int, atMs: Long, pauseMs: Long) {
    def pauses(nowMs: Long): Boolean = nowMs < atMs + pauseMs
    def isPast(nowMs: Long): Boolean = nowMs >= atMs + 2 * pauseMs
  }

  // after a failure; twice as long after each further one in a row
  private val PauseMs = 60000L
  private val MostDoublings = 6

  private val own = ConcurrentHashMap.newKeySet[StoreContext]
  private val followers = new ConcurrentHashMap[Key, Follower]
  private lazy val worker = Daemons.one("millpond-standby")
  private val isQueued = new AtomicBoolean
  @volatile private var wanted = Seq.empty[Wanted]
  private val failed = scala.collection.mutable.HashMap.empty[Key, Failure] // the worker's own

  private def key(context: StoreContext): Key = Key(context.runId, context.storeId.operatorId,
    context.storeId.partitionId, context.storeId.storeName)

  /** A provider opens a store here. It takes over what followed it.
    * @param context of the provider */
  def opened(context: StoreContext): Option[Follower] =
    if (!context.options.boolean("standby.enabled")) None
    else {
      Reports.onAnswer(told)
      Observed.standby(() => followers.size)
      own.add(context): Unit
      val follower = Option(followers.remove(key(context)))
      // the provider goes on with the follower's context, and closes that one
      follower.foreach { f =>
        own.add(f.context): Unit
        own.remove(context): Unit
      }
      follower
    }

  def closed(context: StoreContext): Unit = own.remove(context): Unit

  /** The driver's answer to a report: all that this executor is to follow. */
  private[millpond] def told(answer: String): Unit = {
    wanted =
      if (answer.isEmpty) Nil
      else Json.parse(answer).get("follow").elements.asScala.map(wantedOf).toSeq
    if ((wanted.nonEmpty || !followers.isEmpty) && isQueued.compareAndSet(false, true))
      worker.execute(() => work())
  }

  /** The version to which a store is followed; -1: it is not. */
  private[millpond] def versionOf(operator: Long, partition: Int, name: String): Long =
    followers.asScala.collectFirst {
      case (k, f) if k.operator == operator && k.partition == partition && k.name == name =>
        f.engine.committed.version
    }.getOrElse(-1L)

  private def wantedOf(w: JsonNode): Wanted = Wanted(
    Key(w.get("run_id").asText, w.get("operator").asLong, w.get("partition").asInt,
      w.get("store").asText),
    w.get("version").asLong,
    Option(w.get("id")).map(_.asText))

  private def work(): Unit = {
    isQueued.set(false)
    val now = wanted
    val keys = now.map(_.key).toSet
    followers.keySet.asScala.filterNot(keys).foreach(drop)
    failed.filterInPlace((key, _) => keys(key))
    now.filterNot(w => failed.get(w.key).exists(_.pauses(Clock.passedMs))).foreach(follow)
  }

  private def follow(w: Wanted): Unit = {
    var follower = Option(followers.get(w.key))
    try {
      follower = follower.orElse(begun(w.key))
      follower.foreach(_.bring(w.version, w.id))
      if (failed.get(w.key).exists(_.isPast(Clock.passedMs))) failed.remove(w.key): Unit
    } catch {
      // a task has taken it over, or nobody needs it any more
      case NonFatal(_) if follower.exists(_ ne followers.get(w.key)) => ()
      case NonFatal(e) if !Agent.isStopping =>
        Counters.standbyFailures.increment()
        val times = failed.get(w.key).fold(0)(_.times)
        val pauseMs = Seams.stretch("standby.pause", PauseMs) << math.min(times, MostDoublings)
        val why = e match { case m: MillpondException => s"${m.kind}: "; case _ => "" }
        val text = s"store ${w.key.label} is not followed for ${pauseMs / 1000} s: $why" +
          e.getMessage
        if (times == 0) logWarning(text) else logInfo(text)
        failed(w.key) = Failure(times + 1, Clock.passedMs, pauseMs)
        drop(w.key)
      case NonFatal(_) => drop(w.key)
    }
  }

  /** A new follower, unless this executor has the store itself, or none of the same operator. */
  private def begun(wanted: Key): Option[Follower] = {
    val like = own.asScala.find(c => key(c).copy(partition = wanted.partition) == wanted)
    if (like.isEmpty || isOwn(wanted)) None
    else {
      val follower = new Follower(like.get)(wanted.partition)
      followers.put(wanted, follower): Unit
      // a provider may have come meanwhile: one of the two sees the other
      if (isOwn(wanted) && followers.remove(wanted, follower)) {
        follower.close()
        None
      } else Some(follower)
    }
  }

  private def isOwn(wanted: Key): Boolean = own.asScala.exists(key(_) == wanted)

  /** An exception that left the worker's thread would end the executor. */
  private def drop(unwanted: Key): Unit = Option(followers.remove(unwanted)).foreach { f =>
    try f.close()
    catch {
      case NonFatal(e) =>
        logWarning(s"the follower of store ${unwanted.label} leaves something: ${e.getMessage}", e)
    }
  }
}

/** A store that another executor runs, kept ready here.
  *
  * @param like the context of a store of the same operator */
private[millpond] final class Follower(like: StoreContext)(partition: Int) extends Logging {
  val context: StoreContext = {
    val id = like.storeId
    new StoreContext(StateStoreId(id.checkpointRootLocation, id.operatorId, partition,
        id.storeName), like.conf, like.hadoopConf)
  }
  val engine = new StoreEngine(context, follows = true)
  private val session = new Session(-1L)
  // of the default family, from the last load
  @volatile private var rule: JsonNode = null
  engine.enter(session)

  /** Bring the store to a version that is proven committed. */
  def bring(version: Long, id: Option[String]): Unit = if (version > 0) {
    context.usesCommitIds = id.isDefined
    if (!engine.reuse(session, version, id) && !Loader.catchUp(engine, session, version, id))
      Loader.load(engine, session, version, id, loadEmpty = false, r => rule = r)
    engine.giveWay(session)
  }

  /** A task's session wants this version. Take the store over.
    * @return the rule of the default family; None: the store must be loaded */
  def handOver(to: Session, version: Long, id: Option[String]): Option[JsonNode] = {
    val start = System.nanoTime
    val before = engine.committed.version
    engine.takeOver()
    val ready = rule != null && before > 0 &&
      (engine.reuse(to, version, id) || Loader.catchUp(engine, to, version, id))
    if (ready) {
      Counters.standbyTakeovers.increment()
      context.events.note("store_taken_over", "version" -> version, "behind" -> (version - before),
        "duration_ms" -> (System.nanoTime - start) / 1000000L)
      context.events.publish()
      Some(rule)
    } else None
  }

  /** Nobody needs it here any more. */
  def close(): Unit = engine.close()
}
