package org.apache.spark.sql.millpond.agent

import java.io.{BufferedReader, InputStreamReader}
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.security.SecureRandom
import java.util.concurrent.{
  CompletableFuture, CompletionException, ExecutionException, TimeUnit, TimeoutException
}

import scala.util.control.NonFatal

import py4j.{CallbackClient, GatewayServer, Py4JException, Py4JNetworkException}

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{
  AgentLink, AgentSettings, BuildInfo, Host, Json, LocalDirs, MillpondError
}

private final class AgentProcess(process: Process, server: GatewayServer, api: AgentCalls,
    tail: OutputTail, settings: AgentSettings) extends AgentLink {
  /** The process lives on for a moment after its kill. */
  @volatile private var isKilled = false

  def pid: Long = process.pid
  def waitMs: Int = settings.waitMs
  def isAlive: Boolean = !isKilled && process.isAlive

  def call(method: String, request: String): String =
    try api.call(method, request)
    catch {
      case e: Py4JException if isAlive && isRaisedByPython(e) =>
        throw MillpondError.internal(
          s"the agent failed in '$method': ${e.getMessage}\n${tail.text}", e)
      case e: Py4JException => throw lost(e)
    }

  /** Leaves py4j's own errors out: they quote the request, which has the keys of the storage. */
  private def lost(e: Py4JException): Py4JNetworkException = {
    val cause = Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).take(8)
      .find(c => !c.isInstanceOf[Py4JException])
    new Py4JNetworkException(cause.fold("no connection to the agent")(_.toString), cause.orNull)
  }

  /** All else is about the connection, often without a cause: "Cannot obtain a new communication
    * channel". py4j has no class of its own for it. */
  private def isRaisedByPython(e: Py4JException): Boolean =
    e.getMessage != null && e.getMessage.startsWith("An exception was raised by the Python Proxy")

  def kill(): Unit = {
    isKilled = true
    AgentProcess.end(process, server)
  }
}

private object AgentProcess extends Logging {

  def start(settings: AgentSettings): AgentProcess = {
    val python = interpreter(settings)
    val token = randomToken()
    val registered = new CompletableFuture[AgentCalls]
    // The agent connects to this one. The JVM's own is ::1 where IPv6 is preferred.
    val loopback = InetAddress.getByName("127.0.0.1")
    val server = new GatewayServer.GatewayServerBuilder(new AgentRegistry(a => {
      registered.complete(a)
      ()
    }))
      .javaPort(0).javaAddress(loopback).authToken(token)
      .callbackClient(new CallbackClient(0, loopback, token, 0L, TimeUnit.SECONDS,
          javax.net.SocketFactory.getDefault, true, settings.callTimeoutMs))
      .build()
    // 0 s: no clean-up of idle connections, whose thread would be no daemon
    var process: Process = null
    var done = false
    try {
      startInDaemon(server)
      process = launch(python)
      val tail = new OutputTail(process)
      val hello = Json.obj().put("port", server.getListeningPort).put("token", token)
        .put("parent_pid", ProcessHandle.current.pid)
        .put("local_root", LocalDirs.root.getPath)
      try {
        // stays open: its end tells the agent that this JVM is gone
        val in = process.getOutputStream
        in.write((Json.text(hello) + "\n").getBytes(UTF_8))
        in.flush()
      } catch { case _: java.io.IOException => () } // it died at once: awaitRegistration says why
      val api = awaitRegistration(registered, process, tail, python, settings.startTimeoutMs)
      done = true
      val agent = new AgentProcess(process, server, api, tail, settings)
      checkVersion(agent, python)
      logInfo(s"the agent (pid ${process.pid}) runs on $python")
      agent
    } finally if (!done) end(process, server)
  }

  /** @param process null: it was not started */
  private def end(process: Process, server: GatewayServer): Unit =
    try
      if (process != null) {
        process.destroyForcibly()
        process.waitFor(10, TimeUnit.SECONDS): Unit // the task of this thread may be killed
      }
    finally server.shutdown()

  /** py4j's threads inherit two things from the thread that starts the server. They must be
    * daemons, or the JVM never ends. They load AgentApi by the context class loader, which need not
    * know a jar that came with spark.jars. */
  private def startInDaemon(server: GatewayServer): Unit = {
    val started = new CompletableFuture[Unit]
    val thread = new Thread(() =>
        try { server.start(); started.complete(()); () }
        catch { case e: Throwable => started.completeExceptionally(e); () }, "millpond-agent-link")
    thread.setDaemon(true)
    thread.setContextClassLoader(getClass.getClassLoader)
    thread.start()
    // not `get`: who gave up before the port is open could not close it
    try started.join()
    catch {
      case e: CompletionException => throw MillpondError.of("AGENT_NOT_STARTED",
          s"no loopback port for the agent: ${e.getCause.getMessage}", cause = e)
    }
  }

  private def launch(python: String): Process = {
    val builder = new ProcessBuilder(python, "-u", "-m", "millpond.agent").redirectErrorStream(true)
    // Else Python looks for modules in the working directory first, where a cluster
    // puts the job's files.
    builder.environment.put("PYTHONSAFEPATH", "1")
    try builder.start()
    catch {
      case e: java.io.IOException =>
        throw MillpondError.of("AGENT_NOT_STARTED",
          s"the Python interpreter '$python' cannot be started on this executor (${Host.name}): " +
            s"${e.getMessage}.",
          cause = e)
    }
  }

  private def awaitRegistration(registered: CompletableFuture[AgentCalls], process: Process,
      tail: OutputTail, python: String, timeoutMs: Long): AgentCalls = {
    val deadline = System.nanoTime + timeoutMs * 1000000L
    while (true) {
      try return registered.get(50, TimeUnit.MILLISECONDS)
      catch {
        case _: TimeoutException =>
          if (!process.isAlive) {
            tail.await()
            val text = tail.text
            if (process.exitValue > 128)
              throw MillpondError.of("AGENT_LOST",
                s"the agent was killed by signal ${process.exitValue - 128} while it started.")
            if (text.contains("No module named"))
              throw MillpondError.of("AGENT_PACKAGE_MISSING",
                s"'$python' on this executor (${Host.name}) has no package millpond: " +
                  s"${text.linesIterator.toSeq.lastOption.getOrElse("")}.")
            throw MillpondError.of("AGENT_NOT_STARTED",
              s"the agent ('$python -m millpond.agent' on ${Host.name}) ended with exit code " +
                s"${process.exitValue}: $text")
          }
          if (System.nanoTime > deadline)
            throw MillpondError.of("AGENT_TIMEOUT",
              s"the agent ('$python -m millpond.agent' on ${Host.name}) did not report within " +
                s"$timeoutMs ms: ${tail.text}")
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
        s"the shim's jar is Millpond ${BuildInfo.millpondVersion}, but '$python' on ${Host.name} " +
          s"has millpond $theirs.")
    }
  }

  /** In local mode the driver is the executor too: there the one that the user names is taken, and
    * the driver's own, which millpond.configure sets, only without it. */
  private def interpreter(settings: AgentSettings): String = {
    val env = SparkEnv.get
    val driver = env != null && env.executorId == "driver"
    val alone = driver && env.conf.get("spark.master", "").matches("local(\\[.*\\])?")
    val named = if (alone) settings.python.orElse(settings.driverPython)
    else if (driver) settings.driverPython.orElse(settings.python)
    else settings.python
    // In client mode the executors' Python may be in an archive that the driver has not. In local
    // mode the driver's may be a notebook's.
    val drivers =
      if (driver && !alone) env.conf.getOption("spark.pyspark.driver.python") else None
    named.orElse(drivers)
      .orElse(Option(env).flatMap(_.conf.getOption("spark.pyspark.python")))
      .orElse(Option(System.getenv("PYSPARK_PYTHON")))
      .getOrElse("python3")
  }

  private def randomToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    java.util.HexFormat.of().formatHex(bytes)
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
