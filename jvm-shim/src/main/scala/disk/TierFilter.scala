package org.apache.spark.sql.millpond.disk

import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.base.{RowLimit, SparkCompatibility}
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}

/** The key filter of a disk tier. A scan over all keys makes it; sorted files that come meanwhile
  * and later add to it. If many of its keys are gone, or it has many parts, another scan makes the
  * next one.
  *
  * RocksDB estimates how many keys are left, from how many puts and deletes its files have. Where
  * keys come and go between two flushes, the files have only their deletes, and it says far too
  * few, down to none. Once a scan has found more than that, what it found counts instead, until the
  * next scan: a filter that is made anew would be no better.
  *
  * Who reads the tier holds the store's monitor, and so do callers of `begin`, `keep` and `close`.
  * `begin` needs the lock of the disk tier too: no sorted file is being written then, of which
  * neither the scan nor the filter would have all keys. `add` and `judge` are for the one thread
  * that flushes. The scan holds a lock of its own, so that no read waits for it. */
private[millpond] final class TierFilter {
  import TierFilter._

  @volatile private var ready: KeyFilter = null
  @volatile private var next: KeyFilter = null
  @volatile private var worn = false
  @volatile private var proven = 0L // what the last scan found, if estimates had said far too few
  @volatile private var leastEstimate = Long.MaxValue // of those that asked for a scan
  private var scan: DiskScan = null
  private var buffer: ByteBuffer = null
  private var isWhole = false // `next` has all keys

  /** Whether a scan should make one. */
  def isWanted: Boolean = next == null && (ready == null || worn)
  def isReady: Boolean = ready != null
  def usedBytes: Long = bytesOf(ready) + bytesOf(next)

  /** Whether the tier certainly lacks a physical key. */
  def lacks(key: Array[Byte], length: Int): Boolean = {
    val filter = ready
    filter != null && !filter.mayHave(key, Bytes.ArrayOffset, length)
  }

  /** A sorted file that becomes part of the tier has this key. */
  private[disk] def add(key: Array[Byte], at: Int, length: Int): Unit = {
    // in this order: the scan that ends meanwhile makes `next` the one that is ready
    addTo(next, key, at, length)
    addTo(ready, key, at, length)
  }

  private def addTo(filter: KeyFilter, key: Array[Byte], at: Int, length: Int): Unit =
    if (filter != null) filter.add(key, Bytes.ArrayOffset + at, length)

  /** The tier has about so many keys now. */
  private[disk] def judge(keys: => Long): Unit = {
    val filter = ready
    if (filter != null) {
      val estimate = keys
      val isWorn = filter.partCount > MostParts || hasMore(filter, math.max(estimate, proven))
      if (isWorn) leastEstimate = math.min(leastEstimate, estimate)
      worn = isWorn
    }
  }

  /** Whether the filter has many more keys than these. */
  private def hasMore(filter: KeyFilter, keys: Long): Boolean =
    filter.keys > 2 * keys + FewKeys

  /** @param all over all rows of the tier
    * @param keys how many there are, about */
  private[disk] def begin(all: => DiskScan, keys: Long, budget: MemoryBudget): Unit = synchronized {
    leastEstimate = math.min(leastEstimate, keys)
    val expected = math.max(keys, proven)
    next = new KeyFilter(budget, expected + expected / 4)
    isWhole = false
    try {
      scan = all
      scan.seekToFirst()
      buffer = ByteBuffer.allocateDirect(256)
    } catch { case e: Throwable => end(); throw e }
  }

  /** Add some keys. False: all are there, or nothing is begun. */
  def step(keys: Int): Boolean = synchronized(scan != null && {
    var n = 0
    while (n < keys && scan.isValid) {
      buffer.clear()
      var length = scan.keyInto(buffer)
      if (length > buffer.capacity) {
        buffer = ByteBuffer.allocateDirect(RowLimit.bufferFor(length))
        length = scan.keyInto(buffer)
      }
      next.add(null, SparkCompatibility.addressOf(buffer), length)
      scan.next()
      n += 1
    }
    isWhole = !scan.isValid
    !isWhole
  })

  /** If the new filter has all keys, it answers from now on. Else it is given up. */
  def keep(): Unit = synchronized {
    if (isWhole) {
      proven = if (hasMore(next, leastEstimate)) next.keys else 0L
      leastEstimate = Long.MaxValue
      val before = ready
      ready = next
      next = null
      worn = false
      if (before != null) before.close()
    }
    end()
  }

  /** Give up what was begun. */
  def end(): Unit = synchronized {
    isWhole = false
    if (scan != null) scan.close()
    scan = null
    buffer = null
    val unfinished = next
    next = null
    if (unfinished != null) unfinished.close()
  }

  private[disk] def close(): Unit = synchronized {
    end()
    val filter = ready
    ready = null
    if (filter != null) filter.close()
  }

  private def bytesOf(filter: KeyFilter): Long = if (filter == null) 0L else filter.usedBytes
}

private object TierFilter {
  // a "no" asks each part
  private val MostParts = 4
  private val FewKeys = 10000L
}
