package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.{MillpondError, Seams}
import org.apache.spark.unsafe.Platform

/** Off-heap memory for the records of one table: chunks that never move, cut into records of
  * rounded sizes, with a free list per size. One owner, one thread at a time; `close` gives
  * everything back. Addresses are absolute. */
private[memory] final class Arena(budget: MemoryBudget) {
  import Arena._

  private[memory] var chunks = new Array[Long](8)
  private[memory] var chunkSizes = new Array[Long](8)
  private[memory] var chunkCount = 0
  private var position = 0L
  private var end = 0L
  private[memory] val free = new Array[Long](ClassCount)
  private var freedBytes = 0L
  private var allocated = 0L

  /** All bytes taken from the operating system. */
  def allocatedBytes: Long = allocated
  /** Bytes of records that are in use. */
  def liveBytes: Long = allocated - freedBytes - (end - position)

  /** An uninitialised record of at least `bytes` bytes, 8-byte aligned. */
  def allocate(bytes: Int): Long = {
    val sizeClass = classOf(bytes)
    val head = free(sizeClass)
    if (head != 0L) {
      free(sizeClass) = Platform.getLong(null, head)
      freedBytes -= sizeOf(sizeClass)
      head
    } else {
      val size = sizeOf(sizeClass)
      if (position + size > end) grow(size)
      val address = position
      position += size
      address
    }
  }

  /** Give back what `allocate(bytes)` returned. */
  def release(address: Long, bytes: Int): Unit = {
    val sizeClass = classOf(bytes)
    Platform.putLong(null, address, free(sizeClass))
    free(sizeClass) = address
    freedBytes += sizeOf(sizeClass)
  }

  private def grow(atLeast: Long): Unit = {
    // the rest of the last chunk is lost; chunks grow with the table, so small stores stay small
    val size = math.max(atLeast,
      math.min(MaxChunkBytes, math.max(MinChunkBytes, math.min(allocated, budget.limitBytes / 16))))
    if (chunkCount == chunks.length) {
      chunks = java.util.Arrays.copyOf(chunks, chunkCount * 2)
      chunkSizes = java.util.Arrays.copyOf(chunkSizes, chunkCount * 2)
    }
    val address =
      try { Seams.at("memory.allocate"); Platform.allocateMemory(size) }
      catch { case e: OutOfMemoryError => throw MillpondError.memoryExhausted(size, e) }
    chunks(chunkCount) = address
    chunkSizes(chunkCount) = size
    chunkCount += 1
    freedBytes += end - position
    position = address
    end = address + size
    allocated += size
    budget.add(size)
  }

  def close(): Unit = {
    var i = 0
    while (i < chunkCount) { Platform.freeMemory(chunks(i)); i += 1 }
    budget.add(-allocated)
    chunkCount = 0
    allocated = 0L
    freedBytes = 0L
    position = 0L
    end = 0L
    java.util.Arrays.fill(free, 0L)
  }
}

private[memory] object Arena {
  private val MinChunkBytes = 16L << 10
  private val MaxChunkBytes = 1L << 20
  private val SmallLimit = 1024
  private val SmallClasses = SmallLimit / 8 + 1
  // above 1 KiB: eight classes per power of two, up to 2^31
  private val ClassCount = SmallClasses + 8 * 22

  def classOf(bytes: Int): Int =
    if (bytes <= SmallLimit) (bytes + 7) >>> 3
    else {
      val exponent = 31 - Integer.numberOfLeadingZeros(bytes - 1)
      val step = 1 << (exponent - 3)
      val eighth = (bytes - 1 - (1 << exponent)) / step
      SmallClasses + (exponent - 10) * 8 + eighth
    }

  def sizeOf(sizeClass: Int): Long =
    if (sizeClass < SmallClasses) math.max(8L, sizeClass.toLong << 3)
    else {
      val large = sizeClass - SmallClasses
      val exponent = 10 + large / 8
      (1L << exponent) + (large % 8 + 1L) * (1L << (exponent - 3))
    }
}
