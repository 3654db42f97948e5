package org.apache.spark.sql.millpond.memory

import org.apache.spark.unsafe.Platform

/** Byte runs that may lie off-heap (base null) or in a Java array. */
object Bytes {
  /** Where the content of a byte array begins. */
  val ArrayOffset: Long = Platform.BYTE_ARRAY_OFFSET.toLong
  private val Mul = 0x9E3779B97F4A7C15L

  /** A hash for tables; not durable, not Spark's. */
  def hash(base: AnyRef, offset: Long, length: Int): Int =
    (hash64(base, offset, length) >>> 32).toInt

  /** The same in full. */
  def hash64(base: AnyRef, offset: Long, length: Int): Long = {
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
    h * Mul
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
      if (x != y)
        return java.lang.Long.compareUnsigned(java.lang.Long.reverseBytes(x),
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
        Platform.putLong(to, toOffset + i, Platform.getLong(from, fromOffset + i))
        i += 8
      }
      val rest = length - i
      if (rest >= 4) {
        // what was just written is read at once in the pieces in which it was written, or waits
        Platform.putInt(to, toOffset + i, Platform.getInt(from, fromOffset + i))
        if (rest > 4)
          Platform.putInt(to, toOffset + length - 4, Platform.getInt(from, fromOffset + length - 4))
      } else
        while (i < length) {
          Platform.putByte(to, toOffset + i, Platform.getByte(from, fromOffset + i))
          i += 1
        }
    } else Platform.copyMemory(from, fromOffset, to, toOffset, length.toLong)
}
