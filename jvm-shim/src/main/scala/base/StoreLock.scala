package org.apache.spark.sql.millpond.base

import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.ReentrantLock

/** A lock that a thread may hold for long. Background work that holds it can ask whether
  * a task waits for it. */
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
