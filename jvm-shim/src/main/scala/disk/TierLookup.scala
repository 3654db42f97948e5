package org.apache.spark.sql.millpond.disk

import org.apache.spark.sql.millpond.memory.MemoryBudget

/** What helps reads of a disk tier: where each key is, or at least which keys it lacks. A
  * thread in the background makes it: `begin`, `step` until it says no, and `keep`, which
  * may say that it goes on.
  *
  * @param points has the first word; the key filter takes less memory, and comes where the other
  * stands aside */
private[millpond] final class TierLookup(points: PointReads, filter: TierFilter,
    beginFilter: MemoryBudget => Unit) {
  def isWanted: Boolean = points.isWanted || (filter.isWanted && !points.isReady)
  /** Whether scans of all rows would be faster with it. */
  def isWantedByScans: Boolean = points.isWanted
  /** Whether it denies most keys that the tier lacks, without reading the disk. */
  def isReady: Boolean = points.isReady || filter.isReady
  /** Whether it knows where each key is. */
  def hasPlaces: Boolean = points.isReady
  /** Whether it still holds files that RocksDB has replaced. */
  def isOutdated: Boolean = points.isOutdated
  def usedBytes: Long = points.usedBytes + filter.usedBytes

  /** Whether the tier certainly lacks a physical key, as far as memory tells. */
  def lacks(key: Array[Byte], length: Int): Boolean = !points.isReady && filter.lacks(key, length)

  /** Callers hold the lock of the disk tier, and the store's monitor, as for both parts. */
  def begin(budget: MemoryBudget): Unit =
    if (!(points.isWanted && points.begin(budget)) && filter.isWanted) beginFilter(budget)

  /** Do about so many keys. False: it is `keep`'s turn, or nothing is begun. */
  def step(keys: Int): Boolean = points.step(keys) || filter.step(keys)

  /** What is whole answers from now on. All else is given up. True: there is room by now for what
    * had none, and it goes on. */
  def keep(): Boolean = {
    val goesOn = points.keep()
    if (points.isReady) filter.close() else if (!goesOn) filter.keep()
    goesOn
  }

  /** Give up what was begun. */
  def end(): Unit = { points.end(); filter.end() }

  /** See what has become of the files. What is given up goes at once: a store that is not read
    * would keep it. Callers hold the store's monitor. */
  def judge(): Unit = { points.judge(); points.freeRetired() }

  private[disk] def close(): Unit = { points.close(); filter.close() }
}
