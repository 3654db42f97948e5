package org.apache.spark.sql.millpond.memory

import org.apache.spark.unsafe.Platform

/** The records of a [[Table]]: where their parts lie. A record is a header (32 bytes, 56 with a
  * prefix chain), the key, padding to 8, the value with some capacity. A record without value
  * (`valueLength` -1) says that the key is absent: a delete, or a remembered miss of the disk
  * tier. */
private[millpond] abstract class Records(budget: MemoryBudget, shape: TableShape) {
  import HashSlots.{HashAt, KeyLengthAt}
  import Records._

  protected final val header: Int =
    if (shape == TableShape.Chained) PlainHeader + PrefixChains.LinkBytes else PlainHeader
  private[memory] final val arena = new Arena(budget)

  final def keyAddress(record: Long): Long = record + header
  final def keyLength(record: Long): Int = Platform.getInt(null, record + KeyLengthAt)
  final def valueLength(record: Long): Int = Platform.getInt(null, record + ValueLengthAt)
  final def valueAddress(record: Long): Long = record + header + roundUp(keyLength(record))
  final def isPresent(record: Long): Boolean = Platform.getInt(null, record + ValueLengthAt) >= 0
  final def slotOf(record: Long): Int = Platform.getShort(null, record + SlotAt) & 0xFFFF
  /** The version that wrote a record; 0 if the disk tier has it. Not for records of
    * the running batch. */
  final def stamp(record: Long): Int = Platform.getInt(null, record + StampAt)
  final def birth(record: Long): Int = Platform.getInt(null, record + BirthAt)
  final def wasUsed(record: Long): Boolean = is(record, Used)
  final def markUsed(record: Long): Unit = if (!is(record, Used)) setFlag(record, Used)
  protected final def flags(record: Long): Int = Platform.getShort(null, record + FlagsAt).toInt
  protected final def is(record: Long, flag: Int): Boolean = (flags(record) & flag) != 0
  protected final def setFlag(record: Long, flag: Int): Unit =
    Platform.putShort(null, record + FlagsAt, (flags(record) | flag).toShort)

  /** @param tail as `Table.write` has it */
  protected final def hasValue(
      record: Long, base: AnyRef, offset: Long, length: Int, tail: Long = NoTail): Boolean =
    Platform.getInt(null, record + ValueLengthAt) == length && (length <= 0 || {
      val at = valueAddress(record)
      if (tail == NoTail) Bytes.equal(null, at, base, offset, length)
      else
        Bytes.equal(null, at, base, offset, length - TailBytes) &&
        Platform.getInt(null, at + length - TailBytes) == tail.toInt
    })

  /** Copy a value to its place.
    * @param tail as `Table.write` has it */
  protected final def putValue(
      address: Long, base: AnyRef, offset: Long, length: Int, tail: Long): Unit =
    if (tail == NoTail) Bytes.copy(base, offset, null, address, length)
    else {
      Bytes.copy(base, offset, null, address, length - TailBytes)
      Platform.putInt(null, address + length - TailBytes, tail.toInt)
    }

  /** Make a record, with room for a value of `room` bytes. No index knows it yet.
    * @param tail as `Table.write` has it */
  protected final def allocate(keyBase: AnyRef, keyOffset: Long, keyLength: Int, hash: Int,
      keySlot: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int, room: Int,
      tail: Long): Long = {
    val keyRoom = roundUp(keyLength)
    val valueRoom = roundUp(math.max(room, valueLength))
    val record = arena.allocate(Math.addExact(header + keyRoom, valueRoom))
    Platform.putInt(null, record + HashAt, hash)
    Platform.putInt(null, record + KeyLengthAt, keyLength)
    Platform.putInt(null, record + ValueLengthAt, valueLength)
    Platform.putInt(null, record + CapacityAt, valueRoom)
    Platform.putInt(null, record + StampAt, 0)
    Platform.putInt(null, record + BatchAt, 0)
    Platform.putShort(null, record + SlotAt, keySlot.toShort)
    Platform.putShort(null, record + FlagsAt, Used.toShort)
    Bytes.copy(keyBase, keyOffset, null, record + header, keyLength)
    if (valueLength > 0)
      putValue(record + header + keyRoom, valueBase, valueOffset, valueLength, tail)
    record
  }

  private[memory] final def recordBytes(record: Long): Int =
    header + roundUp(keyLength(record)) + Platform.getInt(null, record + CapacityAt)
  protected final def free(record: Long): Unit = arena.release(record, recordBytes(record))
}

private[memory] object Records {
  // at 0 and 4: hash and length of the key, where `HashSlots` reads them
  final val ValueLengthAt = 8
  final val CapacityAt = 12
  final val StampAt = 16 // of a committed record: version that wrote it, 0 as on disk
  final val TouchAt = StampAt // of a record of the running batch: index into its touch list
  final val BatchAt = 20 // batch counter of the write
  final val SlotAt = 24
  final val FlagsAt = 26
  final val Used = 1 // since eviction last came by
  final val Appended = 2 // the batch only appended, to the value that was there or to none
  final val Rewritten = 4 // the batch wrote it more than once
  // the batch wrote the key first, and nobody knew whether the disk tier has it
  final val Blind = 8
  // the log of the running batch has a record of the key, and it has this very one
  final val Told = 16
  final val Logged = 32
  // the batch only appended since the log had a record of the key
  final val Grown = 64
  final val Kept = Blind | Told // what a record of the batch leaves to the one that replaces it
  final val BirthAt = 28 // epoch in which the key came into the table
  final val MostEpochs = 1 << 30 // about, of a table: then births begin anew
  final val PlainHeader = 32
  final val NoTail = -1L
  final val TailBytes = 4
  def roundUp(n: Int): Int = (n + 7) & ~7
}
