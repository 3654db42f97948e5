package org.apache.spark.sql.millpond.disk

import org.apache.spark.sql.millpond.base.{MillpondError, Seams}
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}
import org.apache.spark.unsafe.Platform

/** Tells that a disk tier lacks a key, without asking it: a Bloom filter of blocks of 32 bytes, as
  * Parquet has, in native memory within the budget. A key that was added is never denied; of the
  * others about one in a hundred is not.
  *
  * It grows by parts, each as large as all before. If the budget has no room for one more, the last
  * part takes in more than it is made for and denies less.
  *
  * `add` may run beside `mayHave`: who needs the answer "no" for certain has been told of the key
  * since, under a lock. `close` must not run beside `mayHave`.
  *
  * @param expected how many keys the first part is for */
private[disk] final class KeyFilter(budget: MemoryBudget, expected: Long) {
  import KeyFilter._

  @volatile private var parts = Array.empty[Part]
  private var room = 0L // how many more keys the last part is for
  private var added = 0L
  private var closed = false
  @volatile private var used = 0L
  grow(math.max(LeastKeys, expected))

  def usedBytes: Long = used
  /** How many different keys were added, about. */
  def keys: Long = synchronized(added)
  /** How many parts a "no" has to ask. */
  def partCount: Int = parts.length

  def add(base: AnyRef, offset: Long, length: Int): Unit = {
    val hash = Bytes.hash64(base, offset, length)
    synchronized {
      if (!closed && !has(hash)) {
        if (room == 0L) grow(added)
        parts(parts.length - 1).add(hash)
        room -= 1
        added += 1
      }
    }
  }

  /** False: the key was never added. */
  def mayHave(base: AnyRef, offset: Long, length: Int): Boolean =
    has(Bytes.hash64(base, offset, length))

  private def has(hash: Long): Boolean = {
    val all = parts
    var i = all.length - 1
    while (i >= 0) {
      if (all(i).mayHave(hash)) return true
      i -= 1
    }
    false
  }

  private def grow(keys: Long): Unit = {
    val most = math.max(LeastBytes, budget.fairShareBytes / ShareOfBudget) - used
    val bytes = math.min(math.min(keys, MostKeys) * BitsPerKey / 8, most) & -BlockBytes
    if (parts.length > 0 && bytes < used / 4) room = Long.MaxValue
    else
      try {
        Seams.at("memory.allocate")
        val address = Platform.allocateMemory(bytes)
        Platform.setMemory(address, 0.toByte, bytes)
        budget.add(bytes)
        used += bytes
        parts = parts :+ new Part(address, bytes)
        room = bytes * 8 / BitsPerKey
      } catch {
        case e: OutOfMemoryError =>
          if (parts.length == 0) throw MillpondError.memoryExhausted(bytes, e)
          room = Long.MaxValue
      }
  }

  def close(): Unit = synchronized {
    closed = true
    parts.foreach { p =>
      Platform.freeMemory(p.address)
      budget.add(-p.bytes)
    }
    parts = Array.empty
    used = 0L
  }
}

private object KeyFilter {
  private val LeastKeys = 1024L
  private val MostKeys = 1L << 32
  private val BitsPerKey = 12L
  private val BlockBytes = 32L
  private val LeastBytes = LeastKeys * BitsPerKey / 8
  private val ShareOfBudget = 8
  // odd numbers, one for each word of a block, as Parquet's specification has them
  private val Salt = Array(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B,
    0x9EFC4947, 0x5C6BFB31)

  private final class Part(val address: Long, val bytes: Long) {
    private val blocks = bytes / BlockBytes

    private def blockOf(hash: Long): Long =
      address + ((hash >>> 32) * blocks >>> 32) * BlockBytes

    def add(hash: Long): Unit = {
      val block = blockOf(hash)
      var i = 0
      while (i < 8) {
        val at = block + i * 4L
        Platform.putInt(null, at,
          Platform.getInt(null, at) | 1 << (hash.toInt * Salt(i) >>> 27))
        i += 1
      }
    }

    def mayHave(hash: Long): Boolean = {
      val block = blockOf(hash)
      var i = 0
      while (i < 8) {
        if ((Platform.getInt(null, block + i * 4L) >>> (hash.toInt * Salt(i) >>> 27) & 1) == 0)
          return false
        i += 1
      }
      true
    }
  }
}
