package org.apache.spark.sql.millpond.memory

import java.util.concurrent.atomic.AtomicLong

/** The bytes that all memory tiers of one executor may use together. A soft limit: the writes of a
  * running micro-batch may exceed it, and stores shrink when they open their next version. */
final class MemoryBudget(firstLimitBytes: Long) {
  @volatile private var limit = firstLimitBytes
  private val used = new AtomicLong
  private val holdings = new Holdings // guarded by `this`
  @volatile private var stores = 0
  @volatile private var level = firstLimitBytes

  def limitBytes: Long = limit
  def usedBytes: Long = used.get
  def storeCount: Int = stores
  def isExceeded: Boolean = used.get > limit
  /** Whether it may soon be exceeded. */
  def isTight: Boolean = used.get > limit / 2
  def add(bytes: Long): Unit = { used.addAndGet(bytes); () }

  /** Any thread may call it, while batches run: whoever asks next goes by the new limit.
    * Returns the limit before. */
  def limitTo(bytes: Long): Long = synchronized {
    val before = limit
    limit = bytes
    level = holdings.level(bytes)
    before
  }

  /** What one store may keep for certain when the whole budget is exceeded. */
  def fairShareBytes: Long = limit / math.max(1, stores)

  /** A store holds `now` instead of `before` bytes; -1: it has no part. Under the monitor. */
  private def change(before: Long, now: Long): Unit = {
    if (before >= 0) holdings.remove(before)
    if (now >= 0) holdings.add(now)
    stores = holdings.count
    level = holdings.level(limit)
  }

  /** The part of one store. Any thread may ask. */
  final class Share {
    // what the store holds, not always to the byte, or -1: it has no part. Changed under the
    // budget's monitor, as `kept` is
    @volatile private var held = -1L
    // what it held when its batch began
    @volatile private var kept = -1L

    /** The store takes part, or no longer does. */
    def take(has: Boolean): Unit = MemoryBudget.this.synchronized(
      if (has != held >= 0) restart(if (has) 0L else -1L))

    /** The store holds `own` bytes, and begins a batch. */
    def begin(own: Long): Unit =
      MemoryBudget.this.synchronized(if (held >= 0) { kept = own; hold(own) })

    /** The store holds nothing any more. */
    def empty(): Unit = MemoryBudget.this.synchronized(if (held >= 0) restart(0L))

    private def restart(own: Long): Unit = { kept = -1L; hold(own) }
    private def hold(own: Long): Unit = { change(held, own); held = own }

    private def note(own: Long): Unit = if (held >= 0 && math.abs(own - held) > limit / 64)
      MemoryBudget.this.synchronized(if (held >= 0) hold(own))

    /** What the store, which holds `own` bytes now, may keep when the budget is exceeded. Stores
      * that hold little leave the rest of an equal share to the others, in equal parts. What
      * another store still holds is free only when that one has given it back. */
    def bytes(own: Long): Long = {
      note(own)
      math.max(fairShareBytes, math.min(level, math.max(kept, limit - (used.get - own))))
    }

    /** What the store may hold before the budget is exceeded, if all stores grow alike. */
    def beforeExceeded(own: Long): Long = own + math.max(0L, limit - used.get) / math.max(1, stores)

    /** What its running batch may keep then. A share can be less than empty tables take, and then
      * each row would move to disk alone. No more batches run than the executor has task slots. */
    def ofBatch(own: Long): Long =
      math.max(bytes(own), math.min(MemoryBudget.LeastMovedBytes, limit / 4))
  }
}

private object MemoryBudget {
  private val LeastMovedBytes = 1L << 20
}
