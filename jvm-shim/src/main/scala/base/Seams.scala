package org.apache.spark.sql.millpond.base

import java.util.concurrent.locks.ReentrantLock

/** Places at which a test's director takes over: it orders the steps of threads, and lets
  * memory, disk and agent fail. In production there is no director, and a seam costs the
  * reading of one field. */
private[millpond] object Seams {
  trait Director {
    /** A thread of the store has come to `point`. The director may let others go first, or throw
      * what could go wrong there. */
    @throws[Throwable]
    def at(point: String): Unit
    /** Begin work in the background. */
    def start(name: String, work: Runnable): Unit
    /** Return when this thread holds the lock. */
    def acquire(lock: ReentrantLock): Unit
    /** The agent of the thread that asks; null: the usual process. */
    def agent: AgentLink = null
    /** How much is done at once: `usual` in production, less in a test. */
    def stretch(what: String, usual: Long): Long = usual
    /** Fill in random bytes for a name; false: the caller must. */
    def fill(bytes: Array[Byte]): Boolean = false
  }

  @volatile var director: Director = null

  def at(point: String): Unit = { val d = director; if (d != null) d.at(point) }

  def agent: AgentLink = { val d = director; if (d == null) null else d.agent }
  def stretch(what: String, usual: Long): Long = {
    val d = director
    if (d == null) usual else d.stretch(what, usual)
  }
  def fill(bytes: Array[Byte]): Boolean = { val d = director; d != null && d.fill(bytes) }

  /** Begin work in the background: `usual` does it in production. */
  def start(name: String, work: Runnable)(usual: Runnable => Unit): Unit = {
    val d = director
    if (d == null) usual(work) else d.start(name, work)
  }
}
