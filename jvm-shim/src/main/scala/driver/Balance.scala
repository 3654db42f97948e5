package org.apache.spark.sql.millpond.driver

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicBoolean

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{
  Clock, Daemons, Event, Events, Json, LocalDirs, MillpondException, Options
}
import org.apache.spark.sql.millpond.observe.{Counters, DriverReports}

/** Moves stores between executors, on the driver of a cluster. When a batch is planned, what was
  * decided before is carried out: no task of the batch runs yet. Then a thread of its own looks at
  * where all stores are, and lets the agent decide what moves before the next batch. No batch waits
  * for that.
  *
  * With the option `standby.enabled` the agent also chooses who follows which store. Executors
  * learn it in answer to their reports. If one is lost, its stores go to those who follow them.
  * Then the thread looks every two seconds, whether a batch is planned or not. */
private object Balance extends Logging {
  private val LeastMs = 300L // from look to look
  private val RestMs = 2000L // while all is well
  // without an agent; twice as long after each further failure in a row
  private val PauseMs = 20000L
  private val MostPauseMs = 3600000L // this driver may have none for good
  private val runs = new ConcurrentHashMap[UUID, Run]
  private lazy val worker = Daemons.one("millpond-balance")
  private val isLooking = new AtomicBoolean
  /** Who follows a store may be lost in a batch that takes minutes, or while no input comes. */
  private lazy val looksForStandby =
    Clock.every(RestMs, "millpond-standby-looks", RestMs) {
      runs.values.asScala.find(r => r.hasStandby && !r.context.isStopped).foreach(lookSoon)
    }
  @volatile private var isWarned = false
  // the worker's own: it alone asks the agent
  private var pauseMs = PauseMs
  private var pausesUntilMs = 0L
  private var listened: SparkContext = null // guarded by `this`
  private var lookedMs = -RestMs
  private var isMoving = false
  private var seen = Set.empty[String]

  /** Called with each plan of a query, on the thread that runs its batches. */
  def planned(session: SparkSession, plan: SparkPlan): Unit = {
    val context = session.sparkContext
    if (!context.isLocal)
      try
        Placement.stages(plan) match {
          case stages if stages.nonEmpty =>
            val run = runs.computeIfAbsent(stages.head.head.info.queryRunId,
              id => new Run(id, context, Options.resolve(SQLConf.get.getAllConfs)))
            if (run.isOn && run.begin(stages)) {
              if (run.hasStandby) listen(context)
              run.carryOut()
              lookSoon(run)
            }
          case _ =>
        }
      catch { case NonFatal(e) => warn(e) }
  }

  def ended(id: UUID): Unit = runs.remove(id): Unit

  private def listen(context: SparkContext): Unit = synchronized {
    if (listened ne context) {
      listened = context
      DriverReports.answerWith(followedBy)
      looksForStandby: Unit
      context.addSparkListener(new SparkListener {
        // A batch may run. If its stage begins anew, Spark asks anew where its tasks are to run.
        override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
          try runs.values.forEach(run =>
              if (run.hasStandby && (run.context eq context)) run.carryOut(onlyLost = true))
          catch { case NonFatal(e) => warn(e) }
      })
    }
  }

  /** What an executor is to follow, as the answer to its report; "": nothing. */
  private def followedBy(executor: String): String = {
    val all = runs.values.asScala.filter(_.hasStandby)
    if (all.isEmpty) ""
    else {
      val answer = Json.obj()
      val list = answer.putArray("follow")
      all.foreach(_.tell(executor, list))
      Json.text(answer)
    }
  }

  /** What moved before a batch, once: for the history. */
  def takeMoves(run: UUID, batch: Long): Option[ArrayNode] =
    Option(runs.get(run)).flatMap(_.takeMoves(batch))

  /** To balance nothing is no reason to fail a query. */
  private def warn(e: Throwable): Unit = {
    val why = e match {
      case m: MillpondException =>
        if (m.kind.startsWith("AGENT_")) {
          pausesUntilMs = Clock.passedMs + pauseMs
          pauseMs = math.min(2 * pauseMs, MostPauseMs)
          isWarned = false // after each pause the log tells why the next one begins
        }
        s"${m.kind}: ${m.getMessage}"
      case other => other.toString
    }
    if (!isWarned && !Agent.isStopping)
      logWarning(s"stores stay where they are, none is moved to balance them: $why")
    isWarned = true
  }

  private def lookSoon(asks: Run): Unit =
    if (isLooking.compareAndSet(false, true)) worker.execute(() => look(asks))

  private def look(asks: Run): Unit =
    try {
      val nowMs = Clock.passedMs
      val executors =
        if (nowMs < pausesUntilMs || nowMs - lookedMs < LeastMs) Nil
        else Placement.executors(asks.context).getOrElse(Nil)
      val ids = executors.map(_.id).toSet
      if (ids.size > 1 && (ids != seen || isMoving || nowMs - lookedMs >= RestMs)) {
        val all = runs.values.asScala.filter(r => r.isOn && (r.context eq asks.context)).toSeq
        if (ids != seen) all.foreach(_.forget())
        seen = ids
        lookedMs = nowMs
        isMoving = decide(asks.options, all, executors)
        isWarned = false
        pauseMs = PauseMs
      }
    } catch { case NonFatal(e) => warn(e) }
    finally isLooking.set(false)

  /** @return whether anything is to move */
  private def decide(options: Options, all: Seq[Run],
      executors: Seq[Placement.LiveExecutor]): Boolean = {
    val loads = new Loads(executors)
    val units = all.flatMap(_.units)
    LocalDirs.configure(options.string("localDir"))
    val byId = executors.map(e => e.id -> e).toMap

    def ask(method: String, list: String, about: Seq[StoreSet]): Seq[(StoreSet, JsonNode)] =
      if (about.isEmpty) Nil
      else {
        val request = Json.obj()
        loads.describe(request.putArray("executors"))
        val described = request.putArray("units")
        about.foreach(unit => unit.run.describe(unit, loads, described.addObject()))
        Agent.call(method, request, options.agentSettings).get(list).elements.asScala
          .map(a => about(a.get("unit").asInt) -> a).toSeq
      }

    val moves = ask("balance", "moves", units.filter(_.run.isBalanced)).map { case (unit, m) =>
      Move(unit, byId(m.get("target").asText), m.get("reason").asText)
    }
    val byRun = moves.groupBy(_.unit.run)
    all.foreach(run => run.decided(byRun.getOrElse(run, Nil)))
    val followers = ask("standby", "followers", units.filter(_.run.hasStandby)).groupMap {
      case (unit, _) => unit.run
    } { case (unit, f) => (unit.stage, unit.partition) -> Standby(unit.executor, byId(f.get(
        "target").asText)) }
    all.filter(_.hasStandby).foreach(run => run.follow(followers.getOrElse(run, Nil).toMap))
    moves.nonEmpty
  }

  /** The stores that one task opens, and where they are. */
  private final case class StoreSet(run: Run, stage: Int, partition: Int, executor: String)

  /** Who has a store set, and who follows it. */
  private final case class Standby(executor: String, target: Placement.LiveExecutor)

  private final case class Move(unit: StoreSet, target: Placement.LiveExecutor, reason: String)

  /** What the executors last reported of their stores. */
  private final class Loads(executors: Seq[Placement.LiveExecutor]) {
    private val reports = DriverReports.latest.map(r => r.executor -> r).toMap
    private val stores = (for {
      e <- executors
      report <- reports.get(e.id).toSeq
      s <- report.stores
    } yield (e.id, s.path("run_id").asText, s.path("operator").asLong, s.path("partition")
      .asInt) -> s).groupMap(_._1)(_._2)

    def describe(out: ArrayNode): Unit = executors.foreach { e =>
      out.addObject().put("id", e.id).put("host", e.host).put("cores", e.cores).put("budget",
        reports.get(e.id).fold(0L)(_.metric("memory_budget_bytes").toLong))
    }

    def of(unit: StoreSet, operators: Seq[Placement.Operator], out: ObjectNode): Unit = {
      val mine = operators.flatMap(op =>
        stores.getOrElse((unit.executor, unit.run.id.toString, op.info.operatorId, unit.partition),
          Nil))
      out.put("memory_bytes", mine.map(_.path("memory_bytes").asLong).sum)
      out.put("restore_ms", mine.map(_.path("restore_ms").asLong).sum)
      // one task has them all at the same time
      mine.map(_.path("batch_ms").asLong).filter(_ > 0).maxOption.foreach(out.put("batch_ms", _))
    }
  }

  /** One run of a query. Its own thread plans and moves, the worker asks and decides. */
  private final class Run(val id: UUID, val context: SparkContext, val options: Options) {
    val isBalanced: Boolean = options.boolean("balance.enabled")
    val hasStandby: Boolean = options.boolean("standby.enabled")
    def isOn: Boolean = isBalanced || hasStandby
    // guarded by `this`
    private var stages = Seq.empty[Seq[Placement.Operator]]
    private var batch = -1L
    private var plannedMs = 0L
    private var intervalMs = 0L
    private var pending = Seq.empty[Move]
    private var standby = Map.empty[(Int, Int), Standby] // by stage and partition
    // by stage and partition: the batch before which it moved last, and how often it moved
    private val moved = mutable.HashMap.empty[(Int, Int), (Long, Int)]
    private val told = mutable.LinkedHashMap.empty[Long, ArrayNode]

    /** @return whether this is the first plan of its batch */
    def begin(now: Seq[Seq[Placement.Operator]]): Boolean = synchronized {
      val version = now.head.head.info.storeVersion
      val isFirst = version > batch
      if (isFirst) {
        val ms = Clock.passedMs
        if (batch >= 0) {
          val last = math.max(1L, ms - plannedMs)
          intervalMs = if (intervalMs == 0) last else math.max(1L, (3 * intervalMs + last) / 4)
        }
        plannedMs = ms
        batch = version
        stages = now
      }
      isFirst
    }

    /** The executors are others: what moved between the old ones says nothing. */
    def forget(): Unit = synchronized(moved.clear())

    def decided(moves: Seq[Move]): Unit = synchronized { pending = moves }

    def follow(now: Map[(Int, Int), Standby]): Unit = synchronized { standby = now }

    /** Tell an executor which stores it follows, and to which version. A batch was planned on that
      * version, so it is committed. */
    def tell(executor: String, out: ArrayNode): Unit = synchronized {
      for {
        ((stage, partition), s) <- standby
        if s.target.id == executor && stage < stages.size
        operator <- stages(stage) if operator.info.storeVersion > 0
        (name, i) <- operator.names.zipWithIndex
      } {
        val one = out.addObject().put("run_id", id.toString).put("store", name)
          .put("operator", operator.info.operatorId).put("partition", partition)
          .put("version", operator.info.storeVersion)
        operator.info.getStateStoreCkptId(partition).flatMap(_.lift(i)).foreach(one.put("id", _))
      }
    }

    def units: Seq[StoreSet] = {
      val now = synchronized(stages)
      for {
        (operators, stage) <- now.zipWithIndex
        partition <- 0 until operators.head.info.numPartitions
        executor <- Placement.where(operators.head.stores(partition).head)
      } yield StoreSet(this, stage, partition, executor)
    }

    def describe(unit: StoreSet, loads: Loads, out: ObjectNode): Unit = synchronized {
      out.put("executor", unit.executor).put("group", s"$id/${unit.stage}")
      loads.of(unit, stages(unit.stage), out)
      if (intervalMs > 0) out.put("interval_ms", intervalMs)
      standby.get((unit.stage, unit.partition)).foreach(s => out.put("standby", s.target.id))
      val last = moved.get((unit.stage, unit.partition))
      out.put("moves", last.fold(0)(_._2))
      last.foreach { case (at, _) => out.put("rested", batch - at) }
    }

    /** Stores whose executor is gone: they go to the one that follows them. */
    private def lost(live: Set[Placement.LiveExecutor]): Seq[Move] = {
      val ids = live.map(_.id)
      standby.toSeq.collect {
        case ((stage, partition), s) if !ids(s.executor) && live(s.target) =>
          Move(StoreSet(this, stage, partition, s.executor), s.target,
            s"executor ${s.executor} is gone, and this one follows the store")
      }
    }

    /** Tell Spark what was decided, as far as it is still so.
      * @param onlyLost not between two batches: only where nobody can have the store */
    def carryOut(onlyLost: Boolean = false): Unit = {
      val live =
        if (hasStandby || synchronized(pending.nonEmpty)) Placement.known(context).toSet
        else Set.empty[Placement.LiveExecutor]
      val (moves, now, version) = synchronized {
        val first = lost(live)
        val due = if (onlyLost) Nil else pending
        if (!onlyLost) pending = Nil
        (first ++ due.filterNot(m => first.exists(_.unit == m.unit)), stages, batch)
      }
      if (moves.nonEmpty) {
        val done = moves.filter { m =>
          m.unit.stage < now.size && live.contains(m.target) &&
          Placement.where(now(m.unit.stage).head.stores(m.unit.partition).head)
            .contains(m.unit.executor)
        }
        val list = Json.obj().putArray("moves")
        done.foreach { m =>
          val stores = now(m.unit.stage).flatMap(_.stores(m.unit.partition))
          val sent = Placement.send(stores, m.target)
          Counters.storesMoved.add(sent.size.toLong)
          val event = Event.of("store_moved", "version" -> version,
            "from_executor" -> m.unit.executor, "to_executor" -> m.target.id,
            "reason" -> m.reason)
          sent.foreach { store =>
            val about = Seq("run_id" -> id, "operator" -> store.operatorId,
              "partition" -> store.partitionId, "store" -> store.storeName)
            Events.log(event.copy(fields = about ++ event.fields))
          }
          val out = list.addObject().put("partition", m.unit.partition)
            .put("from", m.unit.executor).put("to", m.target.id).put("reason", m.reason)
          sent.map(_.operatorId).distinct.sorted
            .foreach(out.withArray[ArrayNode]("operators").add(_))
        }
        note(done, list, version)
      }
    }

    private def note(done: Seq[Move], list: ArrayNode, version: Long): Unit =
      synchronized {
        done.foreach { m =>
          val key = (m.unit.stage, m.unit.partition)
          moved(key) = (version, moved.get(key).fold(0)(_._2) + 1)
        }
        if (done.nonEmpty) {
          told.getOrElseUpdate(version, Json.obj().putArray("moves")).addAll(list): Unit
          if (told.size > Run.MostTold) told.remove(told.head._1): Unit
        }
      }

    /** Also what moved after the batch before had ended: an executor was lost then. */
    def takeMoves(until: Long): Option[ArrayNode] = synchronized {
      val due = told.keys.filter(_ <= until).toSeq.flatMap(told.remove)
      due.reduceOption((all, more) => all.addAll(more))
    }
  }

  private object Run {
    // batches whose progress Spark has not told yet
    val MostTold = 100
  }
}
