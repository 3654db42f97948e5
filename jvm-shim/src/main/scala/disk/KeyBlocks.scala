package org.apache.spark.sql.millpond.disk

import org.apache.spark.sql.millpond.base.Seams
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.unsafe.Platform

/** Tells in which blocks of a sorted file a key can be: a hash table of three bytes an entry, or of
  * four in a file of many blocks or large rows, in native memory. An entry has the number of a
  * block, and of the key's hash what fits beside: the less it is, the more often a key that the
  * file lacks costs the read of a block.
  *
  * One thread fills it; then it never changes. Throws `OutOfMemoryError` if there is no room.
  *
  * @param blocks of the file; `KeyBlocks.mostBlocks` at most */
private[disk] final class KeyBlocks(budget: MemoryBudget, keys: Long, blocks: Int) {
  import KeyBlocks._

  private val entryBytes = entryBytesFor(keys, blocks)
  private val entryMask = if (entryBytes == NarrowBytes) NarrowMask else -1
  private val slots = slotsFor(keys)
  private val numberBits = 32 - Integer.numberOfLeadingZeros(blocks) // of a number from 1 on
  private val numbers = (1 << numberBits) - 1
  val bytes: Long = bytesFor(keys, blocks)
  private val address = {
    Seams.at("memory.allocate")
    val allocated = Platform.allocateMemory(bytes)
    Platform.setMemory(allocated, 0.toByte, bytes)
    budget.add(bytes)
    allocated
  }

  def add(hash: Long, block: Int): Unit = {
    val entry = wanted(hash) | (block + 1)
    var slot = home(hash)
    var found = at(slot)
    while (found != 0 && found != entry) {
      slot = if (slot + 1 == slots) 0L else slot + 1
      found = at(slot)
    }
    if (found == 0) {
      val place = address + slot * entryBytes
      Platform.putShort(null, place, entry.toShort)
      Platform.putByte(null, place + 2, (entry >>> 16).toByte)
      if (entryBytes != NarrowBytes) Platform.putByte(null, place + 3, (entry >>> 24).toByte)
    }
  }

  /** A block that may have the key of a hash, -1: there are no more.
    * @param skip so many candidates before it did not have it */
  def candidate(hash: Long, skip: Int): Int = {
    val tag = wanted(hash)
    var left = skip
    var slot = home(hash)
    var found = at(slot)
    while (found != 0) {
      if ((found & ~numbers) == tag) {
        if (left == 0) return (found & numbers) - 1
        left -= 1
      }
      slot = if (slot + 1 == slots) 0L else slot + 1
      found = at(slot)
    }
    -1
  }

  private def home(hash: Long): Long = (hash >>> 32) * slots >>> 32
  private def wanted(hash: Long): Int = hash.toInt & entryMask & ~numbers
  private def at(slot: Long): Int = Platform.getInt(null, address + slot * entryBytes) & entryMask

  def close(): Unit = { Platform.freeMemory(address); budget.add(-bytes) }
}

private[disk] object KeyBlocks {
  private val NarrowBytes = 3L
  private val NarrowMask = 0xFFFFFF
  private val LeastTagBits = 7

  // with more blocks too many keys would seem to be in one
  private val mostOfNarrow = (1 << (24 - LeastTagBits)) - 1
  // of a block. Beside fewer rows, which are larger, a fourth byte is nothing
  private val RowsOfNarrow = 16L
  val mostBlocks: Int = (1 << (32 - LeastTagBits)) - 1

  private def slotsFor(keys: Long): Long = keys + keys / 4 + 8
  private def entryBytesFor(keys: Long, blocks: Int): Long = {
    val isSmall = blocks <= Seams.stretch("points.blocks", mostOfNarrow.toLong)
    if (isSmall && keys > blocks * RowsOfNarrow) NarrowBytes else 4L
  }

  /** The last entry is read as four bytes.
    * @param blocks 1: not known, perhaps few */
  def bytesFor(keys: Long, blocks: Int = 1): Long = slotsFor(keys) * entryBytesFor(keys, blocks) + 1
}
