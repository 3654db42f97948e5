package org.apache.spark.sql.millpond.memory

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

/** The bytes that all memory tiers of one executor may use together. A soft limit: the writes of a
  * running micro-batch may exceed it, and stores shrink when they open their next version. */
final class MemoryBudget(firstLimitBytes: Long) {
  @volatile private var limit = firstLimitBytes
  private val used = new AtomicLong
  private val stores = new AtomicInteger

  def limitBytes: Long = limit
  def usedBytes: Long = used.get
  def storeCount: Int = stores.get
  def isExceeded: Boolean = used.get > limit
  def add(bytes: Long): Unit = { used.addAndGet(bytes); () }
  def register(): Unit = { stores.incrementAndGet(); () }
  def unregister(): Unit = { stores.decrementAndGet(); () }

  /** Any thread may call it, while batches run: whoever asks next goes by the new limit.
    * Returns the limit before. */
  def limitTo(bytes: Long): Long = synchronized { val before = limit; limit = bytes; before }

  /** What one store may keep when the whole budget is exceeded. */
  def fairShareBytes: Long = limit / math.max(1, stores.get)

  /** What a running batch may keep then. A share can be less than empty tables take, and then each
    * row would move to disk alone. No more batches run than the executor has task slots. */
  def batchShareBytes: Long =
    math.max(fairShareBytes, math.min(MemoryBudget.LeastMovedBytes, limit / 4))
}

private object MemoryBudget {
  private val LeastMovedBytes = 1L << 20
}
