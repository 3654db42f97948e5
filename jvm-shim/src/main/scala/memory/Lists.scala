package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.{MillpondError, Seams}

/** A list of addresses. Only `reserve` needs memory; an `add` after it needs none. */
private[memory] final class LongList {
  private var items = Lists.Empty
  private var count = 0
  def size: Int = count
  def apply(i: Int): Long = items(i)
  def reserve(): Unit = if (count == items.length) items = Lists.grown(items)
  def add(item: Long): Unit = {
    reserve()
    items(count) = item
    count += 1
  }
  def clear(): Unit = { items = Lists.Empty; count = 0 }
  def toArray: Array[Long] = java.util.Arrays.copyOf(items, count)
}

/** A list of pairs (record now, record before or 0). Only `reserve` needs memory; an `add`
  * after it needs none. */
private[memory] final class TouchList {
  private var pairs = Lists.Empty
  private var count = 0
  def size: Int = count
  def current(i: Int): Long = pairs(2 * i)
  def old(i: Int): Long = pairs(2 * i + 1)
  def setCurrent(i: Int, record: Long): Unit = pairs(2 * i) = record
  def reserve(): Unit = if (2 * count == pairs.length) pairs = Lists.grown(pairs)
  def add(current: Long, old: Long): Int = {
    reserve()
    pairs(2 * count) = current
    pairs(2 * count + 1) = old
    count += 1
    count - 1
  }
  def clear(): Unit = { pairs = Lists.Empty; count = 0 }
}

/** Pairs of numbers that wait, first in, first out. Only `reserve` needs memory; an `add` after it
  * needs none. */
private[memory] final class PairQueue {
  private var items = Lists.Empty
  private var first = 0
  private var end = 0
  def size: Int = end - first
  def reserve(): Unit = if (end == items.length) {
    val waiting = size
    val target =
      if (items.length > 0 && waiting <= items.length / 2) items else Lists.grown(items)
    System.arraycopy(items, first, target, 0, waiting)
    items = target
    first = 0
    end = waiting
  }
  def add(one: Int, other: Int): Unit = {
    reserve()
    items(end) = other.toLong << 32 | one & 0xFFFFFFFFL
    end += 1
  }
  /** Of the oldest pair. */
  def one: Int = items(first).toInt
  def other: Int = (items(first) >> 32).toInt
  def drop(): Unit = first += 1
  def clear(): Unit = { items = Lists.Empty; first = 0; end = 0 }
}

private[memory] object Lists {
  val Empty = new Array[Long](0)
  private val First = 16
  private val Most = 1 << 30

  def grown(items: Array[Long]): Array[Long] = {
    if (items.length == Most) throw MillpondError.memoryExhausted(16L * Most, null)
    Seams.at("memory.allocate")
    java.util.Arrays.copyOf(items, math.max(First, items.length * 2))
  }
}
