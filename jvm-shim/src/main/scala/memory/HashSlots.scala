package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.{MillpondError, Seams}
import org.apache.spark.unsafe.Platform

/** Where the records of a table lie, by the hash of their keys: open addressing over native memory.
  * A record begins with its hash and the length of its key; the key lies `header` bytes into it.
  * Callers add one record per key. Only `reserve` needs memory. */
private[memory] final class HashSlots(budget: MemoryBudget, header: Int) {
  import HashSlots._

  private var count = 0
  private var slots = 0L // `count` longs: 0 free, 1 deleted, else tag << 48 | address
  private var occupied = 0 // records and deleted marks
  private var held = 0

  def capacity: Int = count
  def records: Int = held
  def usedBytes: Long = count * 8L

  /** Address of the key's record, or 0. */
  def find(base: AnyRef, offset: Long, length: Int, hash: Int): Long = {
    if (count == 0) return 0L
    val mask = count - 1
    val tag = tagOf(hash)
    var i = hash & mask
    while (true) {
      val slot = Platform.getLong(null, slots + (i.toLong << 3))
      if (slot == 0L) return 0L
      if ((slot & TagMask) == tag && slot != Deleted) {
        val record = slot & AddressMask
        if (Platform.getInt(null, record + KeyLengthAt) == length && Bytes.equal(null,
            record + header, base, offset, length))
          return record
      }
      i = (i + 1) & mask
    }
    0L
  }

  /** Load the slot at which `find` will begin into the processor's cache. What it returns means
    * nothing, but callers must use it: else the compiler drops the load. */
  def touch(hash: Int): Long =
    if (count == 0) 0L else Platform.getLong(null, slots + ((hash & (count - 1)).toLong << 3))

  /** The record of slot `i`, or 0. */
  def at(i: Int): Long = {
    val slot = Platform.getLong(null, slots + (i.toLong << 3))
    if (slot == Deleted) 0L else slot & AddressMask
  }

  /** All records, in no order. */
  def addresses(): Array[Long] = {
    val out = new Array[Long](held)
    var n = 0
    var i = 0
    while (i < count) {
      val record = at(i)
      if (record != 0L) { out(n) = record; n += 1 }
      i += 1
    }
    out
  }

  /** Make room for one more record. */
  def reserve(): Unit = if ((occupied + 1) * 10L > count * 7L) rehash()

  /** Only after `reserve`. */
  def insert(record: Long, hash: Int): Unit = {
    val mask = count - 1
    var i = hash & mask
    var slot = Platform.getLong(null, slots + (i.toLong << 3))
    while (slot != 0L && slot != Deleted) {
      i = (i + 1) & mask
      slot = Platform.getLong(null, slots + (i.toLong << 3))
    }
    if (slot == 0L) occupied += 1
    Platform.putLong(null, slots + (i.toLong << 3), tagOf(hash) | record)
    held += 1
  }

  /** `record`, of the same key, takes the place of `old`. */
  def replace(old: Long, record: Long, hash: Int): Unit =
    Platform.putLong(null, slotOf(old, hash), tagOf(hash) | record)

  def remove(record: Long, hash: Int): Unit = clear(slotOf(record, hash))
  def removeAt(i: Int): Unit = clear(slots + (i.toLong << 3))

  private def clear(slot: Long): Unit = {
    Platform.putLong(null, slot, Deleted)
    held -= 1
  }

  private def slotOf(record: Long, hash: Int): Long = {
    val mask = count - 1
    val wanted = tagOf(hash) | record
    var i = hash & mask
    while (Platform.getLong(null, slots + (i.toLong << 3)) != wanted) i = (i + 1) & mask
    slots + (i.toLong << 3)
  }

  private def rehash(): Unit = {
    val wanted = if (count == 0) 64 else if (held * 10L > count * 4L) count * 2 else count
    // 2^30 slots, and all of them needed
    if (wanted < 0) throw MillpondError.memoryExhausted(count * 16L, null)
    val fresh =
      try { Seams.at("memory.allocate"); Platform.allocateMemory(wanted * 8L) }
      catch { case e: OutOfMemoryError => throw MillpondError.memoryExhausted(wanted * 8L, e) }
    Platform.setMemory(null, fresh, wanted * 8L, 0.toByte)
    val mask = wanted - 1
    var j = 0
    while (j < count) {
      val record = at(j)
      if (record != 0L) {
        var i = Platform.getInt(null, record + HashAt) & mask
        while (Platform.getLong(null, fresh + (i.toLong << 3)) != 0L) i = (i + 1) & mask
        Platform.putLong(null, fresh + (i.toLong << 3),
          Platform.getLong(null, slots + (j.toLong << 3)))
      }
      j += 1
    }
    if (slots != 0L) Platform.freeMemory(slots)
    budget.add((wanted - count) * 8L)
    slots = fresh
    count = wanted
    occupied = held
  }

  def close(): Unit = {
    if (slots != 0L) { Platform.freeMemory(slots); budget.add(-count * 8L) }
    slots = 0L
    count = 0
    occupied = 0
    held = 0
  }
}

private[memory] object HashSlots {
  /** Where a record has its hash and the length of its key. */
  val HashAt = 0
  val KeyLengthAt = 4

  private val Deleted = 1L
  private val AddressMask = 0xFFFFFFFFFFFFL
  private val TagMask = ~AddressMask

  private def tagOf(hash: Int): Long = (hash >>> 16).toLong << 48
}
