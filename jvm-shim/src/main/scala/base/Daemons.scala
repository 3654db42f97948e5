package org.apache.spark.sql.millpond.base

import java.util.concurrent.{ExecutorService, Executors, ThreadFactory}

/** Threads that do not keep the JVM alive. */
object Daemons {
  def named(name: String): ThreadFactory = { work =>
    val thread = new Thread(work, name)
    thread.setDaemon(true)
    thread
  }

  /** One thread, which does one piece of work after the other. */
  def one(name: String): ExecutorService = Executors.newFixedThreadPool(1, named(name))
}
