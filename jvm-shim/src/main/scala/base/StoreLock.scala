package org.apache.spark.sql.millpond.base

import java.util.concurrent.locks.ReentrantLock

/** A lock that a thread may hold for long. */
private[millpond] final class StoreLock {
  private val lock = new ReentrantLock

  def during[T](work: => T): T = {
    acquire()
    try work
    finally lock.unlock()
  }

  /** Do the work if nobody else has the lock. Returns whether it is done. */
  def ifFree(work: => Unit): Boolean = {
    val free = lock.tryLock()
    if (free)
      try work
      finally lock.unlock()
    free
  }

  def isMine: Boolean = lock.isHeldByCurrentThread

  private def acquire(): Unit = if (!lock.tryLock()) {
    val director = Seams.director
    if (director == null) lock.lock() else director.acquire(lock)
  }
}
