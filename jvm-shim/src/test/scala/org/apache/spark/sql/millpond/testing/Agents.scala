/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.io.{InputStream, OutputStream, PrintWriter, StringWriter}
import java.lang.reflect.InvocationTargetException
import java.util.concurrent.TimeUnit

/** Asks for this JVM's agent, and for what the shim tells of itself. Uses reflection, because the
  * harness compiles without the shim. */
object Agents {
  private val shim = "org.apache.spark.sql.millpond."
  private lazy val agents = Class.forName(shim + "agent.Agent$")
  private lazy val agent = agents.getField("MODULE$").get(null)

  /** What an executor tells the driver, as JSON. */
  def report(): String = {
    val reports = Class.forName(shim + "observe.Report$")
    val now = reports.getMethod("now", classOf[String])
      .invoke(reports.getField("MODULE$").get(null), "harness")
    now.getClass.getMethod("text").invoke(now).asInstanceOf[String]
  }

  def isRunning: Boolean = agents.getMethod("isRunning").invoke(agent).asInstanceOf[Boolean]

  private def link: AnyRef = {
    val running = agents.getDeclaredField("running")
    running.setAccessible(true)
    running.get(agent)
  }

  /** Ends the agent as a task that is killed: its thread was interrupted. */
  def endKilled(): Unit = {
    val running = link
    val kill = running.getClass.getMethod("kill")
    kill.setAccessible(true)
    asKilled(kill.invoke(running)): Unit
  }

  /** From now on the process of the running agent counts as alive after its end, as it does for a
    * moment on a busy host. */
  def linger(): Unit = {
    val running = link
    val process = running.getClass.getDeclaredField("process")
    process.setAccessible(true)
    process.set(running, new Lingering(process.get(running).asInstanceOf[Process]))
  }

  private final class Lingering(process: Process) extends Process {
    override def isAlive: Boolean = true
    override def pid: Long = process.pid
    override def getOutputStream: OutputStream = process.getOutputStream
    override def getInputStream: InputStream = process.getInputStream
    override def getErrorStream: InputStream = process.getErrorStream
    override def waitFor(): Int = process.waitFor()
    override def waitFor(time: Long, unit: TimeUnit): Boolean = process.waitFor(time, unit)
    override def exitValue: Int = process.exitValue
    override def destroy(): Unit = process.destroy()
    override def destroyForcibly(): Process = process.destroyForcibly()
  }

  /** Makes one call to the agent that runs. Returns its answer, or its error with all causes. */
  def askOnce(request: String): String = {
    val running = link
    val call = running.getClass.getMethod("call", classOf[String], classOf[String])
    call.setAccessible(true)
    try call.invoke(running, "ping", request).asInstanceOf[String]
    catch {
      case e: InvocationTargetException =>
        val text = new StringWriter
        e.getCause.printStackTrace(new PrintWriter(text, true))
        text.toString
    }
  }

  /** Asks as so many tasks that are killed: each thread is interrupted before it asks. Returns how
    * many of them got an error. */
  def askKilled(tasks: Int): Int = {
    val settings = Class.forName(shim + "base.AgentSettings")
    val usual =
      settings.getConstructors.head.newInstance(None, None, Long.box(60000L), Int.box(60000))
    (1 to tasks).count(_ => !asKilled(agents.getMethod("ready", settings).invoke(agent, usual)))
  }

  /** Returns whether it went well. */
  private def asKilled(work: => Any): Boolean = {
    @volatile var done = false
    val thread = new Thread(() => {
      Thread.currentThread.interrupt()
      try { work; done = true }
      catch { case _: InvocationTargetException => () }
    })
    thread.start()
    thread.join()
    done
  }
}
