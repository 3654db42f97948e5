/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.io.IOException
import java.lang.reflect.{InvocationHandler, Method, Proxy}
import java.util.concurrent.CountDownLatch
import java.util.concurrent.locks.ReentrantLock

/** Lets the store fail at its seams. Uses reflection, because the harness compiles without the
  * shim. */
object Faults extends InvocationHandler {
  private val shim = "org.apache.spark.sql.millpond.base."
  private lazy val seams = Class.forName(shim + "Seams$")
  private lazy val director = Class.forName(shim + "Seams$Director")
  // A flush gathers no more than this, so that it writes several files.
  private val GatherBytes = 1L << 20
  private val PauseMs = 200L // after a failure of a follower
  private val PatienceMs = 20000L
  private var points = Set.empty[String]
  private var first = 0
  private var last = 0
  private var kind = ""
  private var passed = 0
  private var work: Runnable = null
  @volatile private var passing = "" // the thread for which `work` is done
  @volatile private var held = new CountDownLatch(0)
  @volatile private var holding = "" // the thread that is held

  /** Lets the next passes of the seam `point`, from number `first` to `last`, fail with
    * an error of `kind`. The first pass is number 1. Several seams, with blanks between them, are
    * counted as one. */
  def arm(point: String, first: Int, last: Int, kind: String): Unit = synchronized {
    points = point.split(' ').toSet
    this.first = first
    this.last = last
    this.kind = kind
    passed = 0
    work = null
    direct(Proxy.newProxyInstance(director.getClassLoader, Array(director), this))
  }

  /** Lets another thread do `work` at the next pass of the seam `point`. The pass
    * waits for it, but not for long. */
  def meanwhile(point: String, work: Runnable): Unit = synchronized {
    arm(point, 1, 1, "")
    this.work = work
  }

  /** Holds the thread that passes the seam `point` next, until `letGo`, but not for long. */
  def hold(point: String): Unit = synchronized {
    held = new CountDownLatch(1)
    val latch = held
    meanwhile(point,
      () => {
        holding = passing
        try latch.await()
        finally holding = ""
      })
  }

  def passes: Int = synchronized(passed)

  /** The name of the thread that is held; empty: none. */
  def holds: String = holding

  def letGo(): Unit = { disarm(): Unit; held.countDown() }

  /** Lets nothing fail from now on. Returns how often threads passed the seam. */
  def disarm(): Int = synchronized { direct(null); passed }

  private def direct(by: AnyRef): Unit = {
    seams.getMethod("director_$eq", director).invoke(seams.getField("MODULE$").get(null), by)
    ()
  }

  override def invoke(proxy: AnyRef, method: Method, args: Array[AnyRef]): AnyRef =
    method.getName match {
      case "at" => pass(args(0).asInstanceOf[String]); null
      case "start" =>
        val thread = new Thread(args(1).asInstanceOf[Runnable], args(0).asInstanceOf[String])
        thread.setDaemon(true)
        thread.start()
        null
      case "stretch" if args(0) == "flush.gather" => Long.box(GatherBytes)
      case "stretch" if args(0) == "standby.pause" => Long.box(PauseMs)
      case "acquire" => args(0).asInstanceOf[ReentrantLock].lock(); null
      case _ => InvocationHandler.invokeDefault(proxy, method, args: _*)
    }

  private def pass(at: String): Unit = {
    val fails = synchronized {
      if (points(at)) passed += 1
      points(at) && passed >= first && passed <= last
    }
    if (fails && work == null) throw error(at)
    if (fails) {
      passing = Thread.currentThread.getName
      val thread = new Thread(work)
      thread.setDaemon(true)
      thread.start()
      thread.join(PatienceMs)
    }
  }

  private def error(at: String): Throwable = if (kind == "IO") new IOException(s"a fault at $at")
  else if (kind == "HEAP") new OutOfMemoryError(s"a fault at $at")
  else {
    val errors = Class.forName(shim + "MillpondError$")
    errors.getMethod("of", classOf[String], classOf[String], classOf[String], classOf[Throwable])
      .invoke(errors.getField("MODULE$").get(null), kind, s"a fault of the test at $at.", "",
        null).asInstanceOf[Throwable]
  }
}
