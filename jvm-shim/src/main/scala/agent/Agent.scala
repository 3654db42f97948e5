package org.apache.spark.sql.millpond.agent

import java.net.SocketTimeoutException
import java.util.concurrent.atomic.AtomicLong

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.Py4JNetworkException

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{
  AgentLink, AgentSettings, Event, EventBuffer, Events, Json, MillpondError, MillpondException,
  Seams
}
import org.apache.spark.util.ShutdownHookManager

/** The one agent process of this JVM. The first call starts it; a call after its death starts
  * another; it stops with the JVM. If an agent dies in a call, the call is made again: every call
  * is idempotent. The agent answers long work with "not done yet", and the caller asks again. So no
  * call takes longer than the time-out, however long its work takes. */
object Agent extends Logging {
  private val Attempts = 3
  private val OnlyRead = Set("open", "follow", "change_feed")
  private val tickets = new AtomicLong
  private var running: AgentProcess = null
  @volatile private var stopping = false
  /** Whether this JVM ends: what fails now is no news. */
  def isStopping: Boolean = stopping
  private val noted = new EventBuffer
  @volatile private var toldOf = Option.empty[Long] // the last agent whose death was logged
  private val started = new AtomicLong
  /** How many agents this JVM has started, or tried to. */
  def starts: Long = started.get
  private lazy val hook: Unit = { ShutdownHookManager.addShutdownHook(() => stop()); () }

  /** Time spent in calls by this thread since it was last taken. */
  private val spentNs = ThreadLocal.withInitial[AtomicLong](() => new AtomicLong)
  def takeSpentNs(): Long = spentNs.get.getAndSet(0L)

  /** The answer's `ok` part; its `error` part is thrown as [[MillpondException]]. */
  def call(method: String, request: ObjectNode, settings: AgentSettings): JsonNode = {
    val start = System.nanoTime
    request.put("ticket", tickets.incrementAndGet().toString)
    try answer(method, ask(method, request, settings))
    finally { spentNs.get.addAndGet(System.nanoTime - start); () }
  }

  /** Start the agent unless it runs. */
  def ready(settings: AgentSettings): Unit = { current(settings); () }

  private def ask(method: String, request: ObjectNode, settings: AgentSettings): JsonNode = {
    var failures = 0
    while (true) {
      val link = current(settings)
      try {
        request.put("wait_ms", link.waitMs)
        val node = Json.parse(link.call(method, Json.text(request)))
        if (!node.has("pending")) return node
        failures = 0
        Seams.at("agent.pending")
        stopIfUnwanted(method)
      } catch {
        case e: Py4JNetworkException =>
          failures += 1
          val timedOut = e.getCause.isInstanceOf[SocketTimeoutException]
          val isLast = failures == Attempts
          // kill an agent that does not answer: its late writes could come after
          // those of the next attempt
          val isSlow = timedOut && !isLast && answersPing(link)
          if (!isSlow) link.kill()
          val kind = if (timedOut) "AGENT_TIMEOUT" else "AGENT_LOST"
          if (!isSlow && !stopping && tellOf(link.pid))
            Events.log(Event.of("agent_lost", "agent_pid" -> link.pid, "method" -> method,
              "attempt" -> failures, "error" -> kind))
          if (isLast)
            throw MillpondError.of(kind,
              s"the agent did not answer the call '$method' in $Attempts attempts: ${e.getMessage}",
              cause = e)
          if (isSlow)
            Events.log(Event.of("agent_slow", "agent_pid" -> link.pid, "method" -> method,
              "attempt" -> failures))
      }
    }
    throw MillpondError.internal("unreachable")
  }

  /** Whether nobody has told of this agent's death: all tasks of an executor see it. */
  private def tellOf(pid: Long): Boolean = synchronized {
    val isNews = !toldOf.contains(pid)
    toldOf = Some(pid)
    isNews
  }

  private def answersPing(link: AgentLink): Boolean =
    try Json.parse(link.call("ping", "{}")).has("ok")
    catch { case NonFatal(_) => false }

  /** A killed task stops calls that only read. It waits for calls that write: their writes could
    * come after those of the next attempt. */
  private def stopIfUnwanted(method: String): Unit = if (OnlyRead(method)) {
    val task = TaskContext.get()
    if (task != null) task.killTaskIfInterrupted()
    if (Thread.interrupted())
      throw new InterruptedException(s"while the agent is at work at '$method'")
  }

  private def answer(method: String, node: JsonNode): JsonNode = {
    throwIfThere(method, node.get("error"))
    node.get("ok")
  }

  /** Throw the error that an answer describes; null: it describes none. */
  def throwIfThere(method: String, error: JsonNode): Unit = if (error != null)
    throw new MillpondException(error.path("kind").asText("INTERNAL"),
      error.path("message").asText(s"the agent refused '$method'"), error.path("hint").asText(""))

  private def current(settings: AgentSettings): AgentLink = {
    val simulated = Seams.agent
    if (simulated != null) simulated
    else
      try process(settings)
      finally noted.publish()
  }

  private def process(settings: AgentSettings): AgentProcess = synchronized {
    if (stopping) throw MillpondError.of("AGENT_LOST", "the JVM is shutting down")
    if (running == null || !running.isAlive) {
      // no call was there to see it die; one that `ask` has killed is told of already
      if (running != null && !toldOf.contains(running.pid))
        noted.note(Event.of("agent_lost", "agent_pid" -> running.pid, "method" -> "",
          "attempt" -> 0, "error" -> "AGENT_LOST"))
      if (running != null) running.kill()
      running = null
      hook
      val begun = System.nanoTime
      running = start(settings, Attempts)
      noted.note(Event.of("agent_started", "agent_pid" -> running.pid, "starts" -> starts,
        "duration_ms" -> (System.nanoTime - begun) / 1000000L))
    }
    running
  }

  /** Try again if something outside ended the start: that proves nothing about the set-up. */
  private def start(settings: AgentSettings, attempts: Int): AgentProcess = {
    started.incrementAndGet(): Unit
    try AgentProcess.start(settings)
    catch {
      case e: MillpondException if e.kind == "AGENT_LOST" && attempts > 1 =>
        logWarning(e.getMessage)
        start(settings, attempts - 1)
    }
  }

  def isRunning: Boolean =
    Seams.agent != null || synchronized(!stopping && running != null && running.isAlive)

  /** Process id of the running agent, or -1. */
  def pid: Long = synchronized(if (running == null) -1L else running.pid)

  def stop(): Unit = synchronized {
    stopping = true
    if (running != null) running.kill()
    running = null
  }
}
