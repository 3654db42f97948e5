package org.apache.spark.sql.millpond.testing

import java.io.{BufferedReader, BufferedWriter, InputStreamReader, OutputStreamWriter, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.SplittableRandom
import java.util.concurrent.Semaphore
import java.util.concurrent.locks.ReentrantLock

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.{ControlThrowable, NonFatal}

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}
import py4j.Py4JNetworkException

import org.apache.spark.sql.catalyst.expressions.CodegenObjectFactoryMode
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.MillpondStateStoreProvider
import org.apache.spark.sql.millpond.base.{
  AgentLink, AgentSettings, LocalDirs, MillpondError, Seams
}
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.provider.MillpondReading

/** The JVM's side of the simulation (docs/design/0008-simulation.md). All that runs is an actor,
  * a thread that works only while it has the baton. Whoever has it may talk to the Python side
  * over the pipe: one line out, one line back. At each seam the Python side says who goes on,
  * and what goes wrong. */
object Simulation {
  private val json = new ObjectMapper
  private val nodes = JsonNodeFactory.instance
  private val in = new BufferedReader(new InputStreamReader(System.in, UTF_8), 1 << 16)
  private val out = new BufferedWriter(new OutputStreamWriter(System.out, UTF_8), 1 << 16)

  /** The process of the actor was killed. No `NonFatal` catches it. */
  private final class Death extends ControlThrowable

  private final class Actor(val id: Int, val name: String, val owner: String) {
    val turn = new Semaphore(0)
    @volatile var doomed = false
    @volatile var dying = false
  }

  private val mine = new ThreadLocal[Actor]
  private val actors = mutable.LinkedHashMap.empty[Int, Actor]
  private val fresh = mutable.ArrayBuffer.empty[Actor] // the Python side has not heard of them
  private var nextId = 1
  private var owner = "" // of what the main actor does now
  private val stretches = mutable.Map.empty[String, Long]
  private var names = new SplittableRandom(0)
  private var monitors = Array.empty[AnyRef] // nobody may wait while it holds one of them
  private var budget: MemoryBudget = null

  private def ask(message: ObjectNode): JsonNode = {
    if (fresh.nonEmpty) {
      val list = message.putArray("new")
      fresh.foreach(a => list.addArray().add(a.id).add(a.name).add(a.owner))
      fresh.clear()
    }
    if (yields.passed + fails.passed > 0) {
      message.putArray("passed").add(yields.passed).add(fails.passed)
      yields.passed = 0
      fails.passed = 0
    }
    out.write(json.writeValueAsString(message))
    out.write('\n')
    out.flush()
    val line = in.readLine()
    if (line == null) Runtime.getRuntime.halt(0)
    val reply = json.readTree(line)
    yields.skip = reply.path("skip").path(0).asLong(Long.MaxValue)
    fails.skip = reply.path("skip").path(1).asLong(Long.MaxValue)
    reply
  }

  /** Seams at which the same may happen. The Python side says how many of them pass before
    * it is asked again. */
  private final class Stream {
    var skip = 0L
    var passed = 0L
    def isDue: Boolean = skip == 0 || { skip -= 1; passed += 1; false }
  }
  private val yields = new Stream
  private val fails = new Stream
  private var failing = Seq.empty[String] // how the points begin at which something may go wrong
  private val fallible = mutable.HashMap.empty[String, Boolean]

  private def message(kind: String, a: Actor): ObjectNode = nodes.objectNode().put("m", kind)
    .put("t", a.id)

  private def mayYield: Boolean = {
    var i = 0
    while (i < monitors.length) { if (Thread.holdsLock(monitors(i))) return false; i += 1 }
    true
  }

  /** Another actor goes on; returns when this one has its turn again. */
  private def pass(a: Actor, to: Int): Unit = if (to != a.id) {
    actors(to).turn.release()
    a.turn.acquire()
    die(a)
  }

  private def die(a: Actor): Unit = if (a.doomed && !a.dying) { a.dying = true; throw new Death }

  private object Director extends Seams.Director {
    override def at(point: String): Unit = {
      val a = mine.get
      if (a != null && !a.dying) {
        die(a)
        if (fallible.getOrElseUpdate(point, failing.exists(point.startsWith)) && fails.isDue) {
          val reply = ask(message("fails", a).put("p", point))
          if (reply.has("fault")) throw fault(reply.get("fault").asText, point)
        }
        if (actors.size > 1 && mayYield && yields.isDue) {
          val reply = ask(message("yields", a).put("p", point))
          if (reply.has("go")) pass(a, reply.get("go").asInt)
        }
      }
    }

    // a schedule says itself when a store collects, at any time
    override def start(name: String, work: Runnable): Unit = if (!name.startsWith("collection ")) {
      begin(name, ownerOf(mine.get))(() => { work.run(); null })
      ()
    }

    override def acquire(lock: ReentrantLock): Unit = {
      val a = mine.get
      while (!lock.tryLock()) pass(a, ask(message("wait", a)).get("go").asInt)
    }

    override def agent: AgentLink = Link
    override def stretch(what: String, usual: Long): Long = stretches.getOrElse(what, usual)
    override def fill(bytes: Array[Byte]): Boolean = { names.nextBytes(bytes); true }
  }

  private def ownerOf(a: Actor): String = if (a == null || a.id == 0) owner else a.owner

  private def fault(kind: String, point: String): Throwable = kind match {
    case "IO" => new java.io.IOException(s"injected at $point: No space left on device")
    case other => MillpondError.of(other, s"injected at $point")
  }

  private object Link extends AgentLink {
    override def pid: Long = -1L
    override def waitMs: Int = AgentSettings.LongestWaitMs

    override def call(method: String, request: String): String = {
      val a = mine.get
      val first = message("agent", a).put("method", method).put("request", request)
        .put("y", mayYield).put("dying", a.dying).put("owner", ownerOf(a))
      var reply = ask(first)
      while (reply.has("pause")) {
        pass(a, reply.get("go").asInt)
        reply = ask(message("agent_go", a).put("call", reply.get("pause").asInt)
            .put("dying", a.dying))
      }
      if (reply.has("lost"))
        throw new Py4JNetworkException(reply.get("lost").asText,
          if (reply.path("late").asBoolean) new java.net.SocketTimeoutException("injected")
          else null)
      reply.get("answer").asText
    }

    override def kill(): Unit = {
      ask(message("agent_kill", mine.get).put("owner", ownerOf(mine.get)))
      ()
    }
  }

  private def begin(name: String, owner: String)(work: () => JsonNode): Actor = {
    val a = new Actor(nextId, name, owner)
    nextId += 1
    actors(a.id) = a
    fresh += a
    val thread = new Thread(
      () => {
        a.turn.acquire()
        mine.set(a)
        val done = message("done", a)
        try
          if (!a.doomed) {
            val result = work()
            if (result != null) done.set[ObjectNode]("results", result)
          }
        catch {
          case _: Death => done.put("died", true)
          case e: Throwable => done.set[ObjectNode]("error", ProviderHarness.failure(e))
        }
        actors.remove(a.id)
        val next = ask(done).get("go").asInt
        actors(next).turn.release()
      },
      s"actor-${a.id}-$name"
    )
    thread.setDaemon(true)
    thread.start()
    a
  }

  /** What Spark would compile for each schema is interpreted: to compile takes longer than all that
    * a seed does with it. */
  private val plainly = new SQLConf
  plainly.setConfString(SQLConf.CODEGEN_FACTORY_MODE.key,
    CodegenObjectFactoryMode.NO_CODEGEN.toString)

  private def one(c: JsonNode): ObjectNode = {
    val answer = nodes.objectNode()
    try answer.set[ObjectNode]("ok", SQLConf.withExistingConf(plainly)(run(c)))
    catch {
      case e: LinkageError => answer.set[ObjectNode]("error", ProviderHarness.failure(e))
      case e: AssertionError => answer.set[ObjectNode]("error", ProviderHarness.failure(e))
      case NonFatal(e) => answer.set[ObjectNode]("error", ProviderHarness.failure(e))
    }
    answer
  }

  private val unloaded = mutable.Map[String, MillpondStateStoreProvider]()

  private def provider(c: JsonNode): MillpondStateStoreProvider =
    ProviderHarness.providerOf(c.get("p").asText).asInstanceOf[MillpondStateStoreProvider]

  private def run(c: JsonNode): JsonNode = c.get("do").asText match {
    case "begin" => // a new seed
      failing = c.get("failing").elements().asScala.map(_.asText).toSeq
      fallible.clear()
      stretches.clear()
      c.get("stretches").properties().forEach(e => stretches(e.getKey) = e.getValue.asLong)
      names = new SplittableRandom(c.get("seed").asLong)
      nextId = 1
      unloaded.clear()
      Seams.director = Director
      nodes.nullNode
    case "run" => pass(mine.get, c.get("t").asInt); nodes.nullNode
    case "spawn" =>
      val commands = c.get("commands").elements().asScala.toSeq
      val a = begin(c.get("name").asText, c.get("x").asText) { () =>
        val results = nodes.arrayNode()
        var failed = false // as a task: what fails ends it
        commands.foreach { command =>
          if (!failed || command.get("do").asText == "end_session") {
            Seams.at("task.step")
            val answer = one(command)
            failed ||= answer.has("error")
            results.add(answer)
          }
        }
        results
      }
      nodes.numberNode(a.id)
    case "doom" =>
      actors.values.foreach(a => if (a.owner == c.get("x").asText) a.doomed = true); nodes.nullNode
    case "open" =>
      ProviderHarness.run(c); watch(); budget = provider(c).engine.budget; nodes.nullNode
    // without a process its memory is given back all the same: whoever has the store loses it
    case "drop" =>
      val name = c.get("p").asText
      val before = unloaded.remove(name)
      val p = before.getOrElse(provider(c))
      ProviderHarness.storesOf(p).foreach {
        case s: MillpondReading => p.end(s.session)
        case _ => ()
      }
      if (before.isEmpty)
        try ProviderHarness.run(nodes.objectNode().put("do", "close")
              .put("p", name))
        finally watch()
      nodes.nullNode
    // a task that still has the store keeps its memory until it ends, or until its process does
    case "close" =>
      unloaded(c.get("p").asText) = provider(c)
      try ProviderHarness.run(c)
      finally watch()
    // what the task's end does, while a thread of the task may still hold the store
    case "end_session" =>
      val store = ProviderHarness.storeOf(c.get("s").asText).asInstanceOf[MillpondReading]
      store.provider.end(store.session)
      nodes.nullNode
    case "compact" =>
      val engine = provider(c).engine
      engine.diskLock.during { if (engine.disk != null) engine.disk.compact() }
      nodes.nullNode
    case "lose_files" => LocalDirs.delete(provider(c).engine.context.localDir); nodes.nullNode
    case "stats" =>
      nodes.objectNode().put("used_bytes", if (budget == null) 0L else budget.usedBytes)
        .put("actors", actors.size - 1)
        .put("stores", if (budget == null) 0L else budget.limitBytes / budget.fairShareBytes)
    case _ => ProviderHarness.run(c)
  }

  private def watch(): Unit =
    monitors = ProviderHarness.allProviders.collect { case p: MillpondStateStoreProvider => p }
      .flatMap(p => Seq[AnyRef](p, p.engine)).toArray

  def main(args: Array[String]): Unit = {
    System.setOut(new PrintStream(System.err, true)) // nothing else may write between the answers
    val a = new Actor(0, "main", "")
    actors(0) = a
    mine.set(a)
    var reply: JsonNode = ask(nodes.objectNode().put("m", "ready"))
    while (true) {
      owner = reply.path("x").asText("")
      reply = ask(one(reply).put("m", "answer"))
    }
  }
}
