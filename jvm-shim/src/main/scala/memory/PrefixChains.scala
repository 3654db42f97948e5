package org.apache.spark.sql.millpond.memory

import org.apache.spark.unsafe.Platform

/** The records of a table by the prefix of their keys: a list for each prefix, linked through the
  * records. The head of a list is a record of a table of its own: its key is the prefix, its value
  * the address of the first record. Only `link` needs memory. */
private[memory] final class PrefixChains(budget: MemoryBudget, header: Int) {
  import PrefixChains._

  private[memory] val heads = new Table(budget, TableShape.Plain)

  def usedBytes: Long = heads.usedBytes
  def liveBytes: Long = heads.liveBytes

  private def first(head: Long): Long = Platform.getLong(null, heads.valueAddress(head))
  private def setFirst(head: Long, record: Long): Unit =
    Platform.putLong(null, heads.valueAddress(head), record)

  /** Add a record by the first `length` bytes of its key. If memory is refused,
    * nothing has changed. */
  def link(record: Long, length: Int): Unit = {
    val at = record + header
    val hash = Bytes.hash(null, at, length)
    var head = heads.find(null, at, length, hash)
    if (head == 0L)
      head = heads.admit(null, at, length, hash, 0, 0, EmptyList, Bytes.ArrayOffset, 8, 0)
    val next = first(head)
    Platform.putLong(null, record + HeadAt, head)
    Platform.putLong(null, record + PreviousAt, 0L)
    Platform.putLong(null, record + NextAt, next)
    if (next != 0L) Platform.putLong(null, next + PreviousAt, record)
    setFirst(head, record)
  }

  /** `record`, of the same key, takes the place of `old`. */
  def relink(old: Long, record: Long): Unit = {
    val previous = Platform.getLong(null, old + PreviousAt)
    val next = Platform.getLong(null, old + NextAt)
    val head = Platform.getLong(null, old + HeadAt)
    Platform.putLong(null, record + HeadAt, head)
    Platform.putLong(null, record + PreviousAt, previous)
    Platform.putLong(null, record + NextAt, next)
    if (previous != 0L) Platform.putLong(null, previous + NextAt, record)
    else setFirst(head, record)
    if (next != 0L) Platform.putLong(null, next + PreviousAt, record)
  }

  def unlink(record: Long): Unit = {
    val previous = Platform.getLong(null, record + PreviousAt)
    val next = Platform.getLong(null, record + NextAt)
    val head = Platform.getLong(null, record + HeadAt)
    if (previous != 0L) Platform.putLong(null, previous + NextAt, next)
    else if (next != 0L) setFirst(head, next)
    else heads.forget(head)
    if (next != 0L) Platform.putLong(null, next + PreviousAt, previous)
  }

  /** The records of the list of a prefix. */
  def of(base: AnyRef, offset: Long, length: Int): Array[Long] = {
    val out = new LongList
    val head = heads.find(base, offset, length, Bytes.hash(base, offset, length))
    if (head != 0L) follow(head, out)
    out.toArray
  }

  /** All records, list by list. */
  def all(): Array[Long] = {
    val out = new LongList
    heads.addresses().foreach(follow(_, out))
    out.toArray
  }

  private def follow(head: Long, out: LongList): Unit = {
    var record = first(head)
    while (record != 0L) { out.add(record); record = Platform.getLong(null, record + NextAt) }
  }

  def close(): Unit = heads.close()
}

private[memory] object PrefixChains {
  /** Where a record has its links: `LinkBytes` bytes in all. */
  val HeadAt = 32
  val PreviousAt = 40
  val NextAt = 48
  val LinkBytes = 24
  private val EmptyList = new Array[Byte](8)
}
