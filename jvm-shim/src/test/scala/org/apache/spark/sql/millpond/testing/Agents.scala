/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.lang.reflect.InvocationTargetException

/** Asks for this JVM's agent. Uses reflection, because the harness compiles without the shim. */
object Agents {
  private val shim = "org.apache.spark.sql.millpond."
  private lazy val agents = Class.forName(shim + "agent.Agent$")
  private lazy val agent = agents.getField("MODULE$").get(null)

  def isRunning: Boolean = agents.getMethod("isRunning").invoke(agent).asInstanceOf[Boolean]

  /** Ends the agent as a task that is killed: its thread was interrupted. */
  def endKilled(): Unit = {
    val running = agents.getDeclaredField("running")
    running.setAccessible(true)
    val link = running.get(agent)
    val kill = link.getClass.getMethod("kill")
    kill.setAccessible(true)
    asKilled(kill.invoke(link)): Unit
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
