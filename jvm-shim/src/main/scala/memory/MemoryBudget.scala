package org.apache.spark.sql.millpond.memory

import java.util.concurrent.atomic.AtomicLong

/** The bytes that all memory tiers of one executor may use together. A soft limit: each store may
  * have its share, though others hold more than theirs, and a running micro-batch a MiB. Stores
  * shrink when they open their next version. */
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
  /** Whether all that is planned beside it for running batches is used, too. */
  def isCrowded: Boolean = used.get - limit > limit
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
    def ofBatch(own: Long): Long = orLeast(bytes(own), MemoryBudget.LeastMovedBytes)

    /** What its batch may leave when it ends. Nothing shrinks the store before it begins another
      * one, and any number of stores may wait for that. */
    def afterBatch(own: Long): Long =
      if (isCrowded) orLeast(bytes(own), MemoryBudget.LeastLeftBytes) else ofBatch(own)

    private def orLeast(part: Long, least: Long): Long = math.max(part, math.min(least, limit / 4))
  }
}

private object MemoryBudget {
  private val LeastMovedBytes = 1L << 20
  private val LeastLeftBytes = 16L << 10 // a table takes as much for its first row
}
