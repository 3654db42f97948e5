package org.apache.spark.sql.millpond

import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.ReentrantLock

/** Where a test takes the store apart: it orders what threads would do, and lets memory, disk and agent fail, each at a place of its
  * choice. In production there is no director, and a seam costs the reading of one field. */
private[millpond] object Seams {
  trait Director {
    /** A thread of the store has come to `point`. Others may go first; what could go wrong there may be thrown. */
    @throws[Throwable]
    def at(point: String): Unit
    /** Begin work in the background. */
    def start(name: String, work: Runnable): Unit
    /** Return when this thread holds the lock. */
    def acquire(lock: ReentrantLock): Unit
    /** The agent of the thread that asks; null: the usual process. */
    def agent: AgentLink = null
    /** How much of something is done at once, where production does `usual`: a test takes less. */
    def stretch(what: String, usual: Long): Long = usual
    /** Random bytes for a name; false: the usual ones. */
    def fill(bytes: Array[Byte]): Boolean = false
  }

  @volatile var director: Director = null

  def at(point: String): Unit = { val d = director; if (d != null) d.at(point) }

  def agent: AgentLink = { val d = director; if (d == null) null else d.agent }
  def stretch(what: String, usual: Long): Long = {
    val d = director; if (d == null) usual else d.stretch(what, usual)
  }
  def fill(bytes: Array[Byte]): Boolean = { val d = director; d != null && d.fill(bytes) }

  /** Begin work in the background: `usual` does it in production. */
  def start(name: String, work: Runnable)(usual: Runnable => Unit): Unit = {
    val d = director; if (d == null) usual(work) else d.start(name, work)
  }
}

/** A lock of a store that may be held for long: work in the background asks whether a task waits for it. */
private[millpond] final class StoreLock {
  private val lock = new ReentrantLock
  private val waiting = new AtomicInteger

  def during[T](work: => T): T = {
    acquire()
    try work
    finally lock.unlock()
  }

  /** Do the work if nobody else has the lock. */
  def ifFree(work: => Unit): Unit = if (lock.tryLock()) {
    try work
    finally lock.unlock()
  }

  /** Whether another thread waits for it. */
  def isWanted: Boolean = waiting.get > 0
  def isMine: Boolean = lock.isHeldByCurrentThread

  private def acquire(): Unit = if (!lock.tryLock()) {
    waiting.incrementAndGet(): Unit
    try { val d = Seams.director; if (d == null) lock.lock() else d.acquire(lock) }
    finally waiting.decrementAndGet(): Unit
  }
}
