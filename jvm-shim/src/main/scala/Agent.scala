package org.apache.spark.sql.millpond

import java.io.{BufferedReader, InputStreamReader}
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.security.SecureRandom
import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}
import java.util.concurrent.atomic.AtomicLong

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.{CallbackClient, GatewayServer, Py4JException, Py4JNetworkException}

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.util.ShutdownHookManager

/** The one agent process of this JVM: started at the first call, started again if it died, stopped with the JVM.
  * A call that the dead agent left unanswered is made again: every call is idempotent. Work that takes
  * long is answered as not done yet, and asked for again; so no call takes longer than the time-out,
  * however long its work takes. */
object Agent extends Logging {
  private val Attempts = 3
  private val OnlyRead = Set("open", "change_feed")
  private val tickets = new AtomicLong
  private var running: AgentProcess = null
  private var stopping = false
  private lazy val hook: Unit = { ShutdownHookManager.addShutdownHook(() => stop()); () }

  /** Time spent in calls by this thread since it was last taken. */
  private val spentNs = ThreadLocal.withInitial[AtomicLong](() => new AtomicLong)
  def takeSpentNs(): Long = spentNs.get.getAndSet(0L)

  /** The answer's `ok` part; its `error` part is thrown as [[MillpondException]]. */
  def call(method: String, request: ObjectNode, settings: AgentSettings): JsonNode = {
    val start = System.nanoTime
    request.put("ticket", tickets.incrementAndGet().toString).put("wait_ms", settings.waitMs)
    try answer(method, ask(method, Json.text(request), settings))
    finally { spentNs.get.addAndGet(System.nanoTime - start); () }
  }

  private def ask(method: String, request: String, settings: AgentSettings): JsonNode = {
    var failures = 0
    while (true) {
      val link = current(settings)
      try {
        val node = Json.parse(link.call(method, request))
        if (!node.has("pending")) return node
        failures = 0
        Seams.at("agent.pending")
        stopIfUnwanted(method)
      } catch {
        case e: Py4JNetworkException =>
          failures += 1
          val timedOut = link.timedOut(e)
          val isLast = failures == Attempts
          // what it still does for a call that is given up could come after what the next attempt does
          val isSlow = timedOut && !isLast && answersPing(link)
          if (!isSlow) link.kill()
          if (isLast)
            throw MillpondError.of(if (timedOut) "AGENT_TIMEOUT" else "AGENT_LOST",
              s"the agent did not answer the call '$method' in $Attempts attempts: ${e.getMessage}",
              cause = e)
          if (isSlow) logWarning(
            s"Millpond agent (pid ${link.pid}) is slow to answer '$method'; it is asked again")
          else logWarning(
            s"Millpond agent (pid ${link.pid}) was lost during '$method'; starting another one")
      }
    }
    throw MillpondError.internal("unreachable")
  }

  private def answersPing(link: AgentLink): Boolean =
    try Json.parse(link.call("ping", "{}")).has("ok")
    catch { case NonFatal(_) => false }

  /** A task that was killed asks no more for what only reads. What writes is waited for: it could come
    * after what the next attempt writes. */
  private def stopIfUnwanted(method: String): Unit = if (OnlyRead(method)) {
    val task = TaskContext.get()
    if (task != null) task.killTaskIfInterrupted()
    if (Thread.interrupted())
      throw new InterruptedException(s"while the agent is at work at '$method'")
  }

  private def answer(method: String, node: JsonNode): JsonNode = {
    val error = node.get("error")
    if (error == null) node.get("ok")
    else throw new MillpondException(error.path("kind").asText("INTERNAL"),
      error.path("message").asText(s"the agent refused '$method'"), error.path("hint").asText(""))
  }

  private def current(settings: AgentSettings): AgentLink = {
    val simulated = Seams.agent
    if (simulated != null) simulated else process(settings)
  }

  private def process(settings: AgentSettings): AgentProcess = synchronized {
    if (stopping) throw MillpondError.of("AGENT_LOST", "the JVM is shutting down")
    if (running == null || !running.isAlive) {
      if (running != null) running.kill()
      running = null
      hook
      running = start(settings, Attempts)
    }
    running
  }

  /** A start that something outside ended says nothing about the set-up: it is tried again. */
  private def start(settings: AgentSettings, attempts: Int): AgentProcess =
    try AgentProcess.start(settings)
    catch {
      case e: MillpondException if e.kind == "AGENT_LOST" && attempts > 1 =>
        logWarning(e.getMessage)
        start(settings, attempts - 1)
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

final case class AgentSettings(python: Option[String], driverPython: Option[String],
    startTimeoutMs: Long, callTimeoutMs: Int) {
  /** How long the agent works at a call before it answers that it is not done. */
  def waitMs: Int = math.min(AgentSettings.LongestWaitMs, callTimeoutMs / 4)
}

private object AgentSettings {
  val LongestWaitMs = 5000
}

/** An agent, as far as calls see it. */
private[millpond] trait AgentLink {
  def pid: Long
  /** The answer's text. Fails with Py4JNetworkException if the agent is gone or did not answer in time. */
  def call(method: String, request: String): String
  def timedOut(e: Throwable): Boolean
  def kill(): Unit
}

private final class AgentProcess(process: Process, server: GatewayServer, api: AgentApi,
    tail: OutputTail) extends AgentLink {
  def pid: Long = process.pid
  def isAlive: Boolean = process.isAlive

  def call(method: String, request: String): String =
    try api.call(method, request)
    catch {
      case e: Py4JNetworkException => throw e
      case e: Py4JException if !process.isAlive || isNetwork(e) =>
        throw new Py4JNetworkException(e.getMessage, e)
      case e: Py4JException => throw MillpondError.internal(
          s"the agent failed in '$method': ${e.getMessage}\n${tail.text}", e)
    }

  private def isNetwork(e: Throwable): Boolean =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).exists(c =>
      c.isInstanceOf[java.io.IOException] || c.isInstanceOf[Py4JNetworkException])

  def timedOut(e: Throwable): Boolean =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).exists(
      _.isInstanceOf[java.net.SocketTimeoutException])

  def kill(): Unit = {
    process.destroyForcibly()
    process.waitFor(10, TimeUnit.SECONDS)
    server.shutdown()
  }
}

private object AgentProcess extends Logging {

  def start(settings: AgentSettings): AgentProcess = {
    val python = interpreter(settings)
    val token = randomToken()
    val registered = new CompletableFuture[AgentApi]
    val loopback = InetAddress.getLoopbackAddress
    val server = new GatewayServer.GatewayServerBuilder(new AgentRegistry(a => {
      registered.complete(a); ()
    }))
      .javaPort(0).javaAddress(loopback).authToken(token)
      .callbackClient(new CallbackClient(0, loopback, token, 0L, TimeUnit.SECONDS,
          javax.net.SocketFactory.getDefault, true, settings.callTimeoutMs))
      .build()
    // no clean-up of idle connections (0 s): it would run on a thread that is no daemon
    startInDaemon(server)
    var process: Process = null
    var done = false
    try {
      process = launch(python)
      val tail = new OutputTail(process)
      val hello = Json.obj().put("port", server.getListeningPort).put("token", token).put(
        "parent_pid", ProcessHandle.current.pid)
        .put("local_root", LocalDirs.root.getPath)
      try {
        val in =
          process.getOutputStream // stays open: its end tells the agent that this JVM is gone
        in.write((Json.text(hello) + "\n").getBytes(UTF_8))
        in.flush()
      } catch { case _: java.io.IOException => () } // it died at once: awaitRegistration says why
      val api = awaitRegistration(registered, process, tail, python, settings.startTimeoutMs)
      done = true
      val agent = new AgentProcess(process, server, api, tail)
      checkVersion(agent, python)
      logInfo(s"Millpond agent started, pid ${process.pid}, $python")
      agent
    } finally if (!done) {
        if (process != null) { process.destroyForcibly(); process.waitFor(10, TimeUnit.SECONDS) }
        server.shutdown()
      }
  }

  /** py4j's threads inherit two things from the one that starts the server. They must be daemons, or the JVM never ends; and they load
    * AgentApi by the context class loader, which need not know a jar that came with spark.jars. */
  private def startInDaemon(server: GatewayServer): Unit = {
    val started = new CompletableFuture[Unit]
    val thread = new Thread(() =>
        try { server.start(); started.complete(()); () }
        catch { case NonFatal(e) => started.completeExceptionally(e); () }, "millpond-agent-link")
    thread.setDaemon(true)
    thread.setContextClassLoader(getClass.getClassLoader)
    thread.start()
    try started.get()
    catch {
      case e: ExecutionException => throw MillpondError.of("AGENT_NOT_STARTED",
          s"no loopback port for the agent: ${e.getCause.getMessage}", cause = e)
    }
  }

  private def launch(python: String): Process = {
    val builder = new ProcessBuilder(python, "-u", "-m", "millpond.agent").redirectErrorStream(true)
    // Else Python looks for modules in the working directory first, where a cluster puts files of the job's.
    builder.environment.put("PYTHONSAFEPATH", "1")
    try builder.start()
    catch {
      case e: java.io.IOException =>
        throw MillpondError.of("AGENT_NOT_STARTED",
          s"the Python interpreter '$python' cannot be started on this executor (${host()}): ${e.getMessage}.",
          cause = e)
    }
  }

  private def awaitRegistration(registered: CompletableFuture[AgentApi], process: Process,
      tail: OutputTail, python: String, timeoutMs: Long): AgentApi = {
    val deadline = System.nanoTime + timeoutMs * 1000000L
    while (true) {
      try return registered.get(50, TimeUnit.MILLISECONDS)
      catch {
        case _: TimeoutException =>
          if (!process.isAlive) {
            tail.await()
            val text = tail.text
            if (process.exitValue > 128) throw MillpondError.of("AGENT_LOST",
              s"the agent was killed by signal ${process.exitValue - 128} while it started.")
            if (text.contains("No module named"))
              throw MillpondError.of("AGENT_PACKAGE_MISSING",
                s"'$python' on this executor (${host()}) has no package millpond: ${text.linesIterator.toSeq.lastOption.getOrElse("")}.")
            throw MillpondError.of("AGENT_NOT_STARTED",
              s"the agent ('$python -m millpond.agent' on ${host()}) ended with exit code ${process.exitValue}: $text")
          }
          if (System.nanoTime > deadline)
            throw MillpondError.of("AGENT_TIMEOUT",
              s"the agent ('$python -m millpond.agent' on ${host()}) did not report within $timeoutMs ms: ${tail.text}")
        case e: ExecutionException => throw MillpondError.internal("agent registration", e)
      }
    }
    throw MillpondError.internal("unreachable")
  }

  private def checkVersion(agent: AgentProcess, python: String): Unit = {
    val theirs =
      try Json.parse(agent.call("ping", "{}")).path("ok").path("version").asText("?")
      catch { case NonFatal(e) => agent.kill(); throw e }
    if (theirs != BuildInfo.millpondVersion) {
      agent.kill()
      throw MillpondError.of("AGENT_VERSION_MISMATCH",
        s"the shim's jar is Millpond ${BuildInfo.millpondVersion}, but '$python' on ${host()} has millpond $theirs.")
    }
  }

  private def interpreter(settings: AgentSettings): String = {
    val env = SparkEnv.get
    val local = env != null && env.executorId == "driver"
    (if (local) settings.driverPython else None)
      .orElse(settings.python)
      .orElse(Option(env).flatMap(_.conf.getOption("spark.pyspark.python")))
      .orElse(Option(System.getenv("PYSPARK_PYTHON")))
      .getOrElse("python3")
  }

  private def host(): String = InetAddress.getLocalHost.getHostName

  private def randomToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    DiskTier.hex(bytes)
  }
}

/** Passes the agent's output on to this executor's stderr and keeps its end for error messages. */
private final class OutputTail(process: Process) {
  private val lines = new java.util.ArrayDeque[String]
  private val reader = new Thread(() => pump(), s"millpond-agent-output-${process.pid}")
  reader.setDaemon(true)
  reader.start()

  private def pump(): Unit = {
    val in = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))
    try {
      var line = in.readLine()
      while (line != null) {
        System.err.println(line)
        lines.synchronized { lines.addLast(line); if (lines.size > 20) lines.removeFirst() }
        line = in.readLine()
      }
    } catch { case _: java.io.IOException => () } // the process was killed
  }

  def await(): Unit = reader.join(2000)
  def text: String = lines.synchronized(String.join("\n", lines))
}
