package org.apache.spark.sql.millpond

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import org.apache.spark.unsafe.Platform

/** The bytes that all memory tiers of one executor may use together. A soft limit: a running micro-batch may exceed it by what it writes;
  * the stores shrink themselves when they open their next version. */
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

/** Off-heap memory for the records of one table: chunks that never move, cut into records of rounded sizes, with a free list per size.
  * One owner, one thread at a time; `close` gives everything back. Addresses are absolute. */
final class Arena(budget: MemoryBudget) {
  import Arena._

  private[millpond] var chunks = new Array[Long](8)
  private[millpond] var chunkSizes = new Array[Long](8)
  private[millpond] var chunkCount = 0
  private var position = 0L
  private var end = 0L
  private[millpond] val free = new Array[Long](ClassCount)
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
    // the rest of the last chunk is lost; chunks grow with the table so that many small stores stay small
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

object Arena {
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

/** Byte runs that may lie off-heap (base null) or in a Java array. */
object Bytes {
  /** Where the content of a byte array begins. */
  val ArrayOffset: Long = Platform.BYTE_ARRAY_OFFSET.toLong
  private val Mul = 0x9E3779B97F4A7C15L

  /** A hash for tables; not durable, not Spark's. */
  def hash(base: AnyRef, offset: Long, length: Int): Int = {
    var h = length * Mul
    var at = offset
    val words = offset + (length & ~7)
    while (at < words) {
      h = (h ^ Platform.getLong(base, at)) * Mul
      h ^= h >>> 29
      at += 8
    }
    val end = offset + length
    while (at < end) {
      h = (h ^ (Platform.getByte(base, at) & 0xFF)) * Mul
      at += 1
    }
    h ^= h >>> 32
    (h * Mul >>> 32).toInt
  }

  def equal(a: AnyRef, aOffset: Long, b: AnyRef, bOffset: Long, length: Int): Boolean = {
    var i = 0
    val words = length & ~7
    while (i < words) {
      if (Platform.getLong(a, aOffset + i) != Platform.getLong(b, bOffset + i)) return false
      i += 8
    }
    while (i < length) {
      if (Platform.getByte(a, aOffset + i) != Platform.getByte(b, bOffset + i)) return false
      i += 1
    }
    true
  }

  /** Unsigned lexicographic order. */
  def compare(
      a: AnyRef, aOffset: Long, aLength: Int, b: AnyRef, bOffset: Long, bLength: Int): Int = {
    val common = math.min(aLength, bLength)
    val words = common & ~7
    var i = 0
    while (i < words) {
      val x = Platform.getLong(a, aOffset + i)
      val y = Platform.getLong(b, bOffset + i)
      if (x != y) return java.lang.Long.compareUnsigned(java.lang.Long.reverseBytes(x),
        java.lang.Long.reverseBytes(y))
      i += 8
    }
    while (i < common) {
      val d = (Platform.getByte(a, aOffset + i) & 0xFF) - (Platform.getByte(b, bOffset + i) & 0xFF)
      if (d != 0) return d
      i += 1
    }
    aLength - bLength
  }

  def copy(from: AnyRef, fromOffset: Long, to: AnyRef, toOffset: Long, length: Int): Unit =
    if (length <= 128) {
      var i = 0
      val words = length & ~7
      while (i < words) {
        Platform.putLong(to, toOffset + i, Platform.getLong(from, fromOffset + i)); i += 8
      }
      if (i < length) {
        if (length > 8) Platform.putLong(to, toOffset + length - 8,
          Platform.getLong(from, fromOffset + length - 8)) // once more, some of the last word
        else while (i < length) {
          Platform.putByte(to, toOffset + i, Platform.getByte(from, fromOffset + i)); i += 1
        }
      }
    } else Platform.copyMemory(from, fromOffset, to, toOffset, length.toLong)
}
