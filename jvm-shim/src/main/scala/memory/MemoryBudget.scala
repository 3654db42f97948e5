package org.apache.spark.sql.millpond.memory

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

/** The bytes that all memory tiers of one executor may use together. A soft limit: the writes of a
  * running micro-batch may exceed it, and stores shrink when they open their next version. */
final class MemoryBudget(val limitBytes: Long) {
  private val used = new AtomicLong
  private val stores = new AtomicInteger

  def usedBytes: Long = used.get
  def isExceeded: Boolean = used.get > limitBytes
  def add(bytes: Long): Unit = { used.addAndGet(bytes); () }
  def register(): Unit = { stores.incrementAndGet(); () }
  def unregister(): Unit = { stores.decrementAndGet(); () }

  /** What one store may keep when the whole budget is exceeded. */
  def fairShareBytes: Long = limitBytes / math.max(1, stores.get)
}
