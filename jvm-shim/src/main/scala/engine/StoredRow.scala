package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.base.{MillpondException, TimeToLive}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Age, Family, GrowingKey}

/** A row of a family with plain rows, wherever it lies: its encoded key, and its value with its
  * age. Valid until the next call that writes the store or reads its disk tier. Callers hold the
  * engine's monitor. */
private[engine] final class StoredRow(engine: StoreEngine) {
  private val diskKey = new GrowingKey
  private var f: Family = null
  private var key: Array[Byte] = null
  private var keyLength = 0
  private var hash = 0
  private var slot = 0
  private var found = 0L // in memory
  private var base: AnyRef = null
  private var offset = 0L
  private var length = 0
  private var ownAge = Age.Unknown

  /** Look for the row of a key. False: there is none.
    * @param at the slot of its key */
  def find(family: Family, at: Int, ofKey: Array[Byte], ofLength: Int): Boolean = {
    f = family
    key = ofKey
    keyLength = ofLength
    hash = Bytes.hash(key, Bytes.ArrayOffset, keyLength)
    val table = f.table
    found = table.find(key, Bytes.ArrayOffset, keyLength, hash)
    slot = if (found == 0L) at else table.slotOf(found)
    val there =
      if (found != 0L) table.isPresent(found) && {
        lies(null, table.valueAddress(found), table.valueLength(found))
      }
      else !table.complete && {
        diskKey.set(slot, f, key, Bytes.ArrayOffset, keyLength)
        val n =
          if (engine.disk.lookup.lacks(diskKey.bytes, diskKey.length)) -1
          else
            try engine.disk.get(diskKey.bytes, diskKey.length)
            catch { case e: MillpondException => throw engine.distrust(e) }
        n >= 0 && lies(engine.disk.lastValue, Bytes.ArrayOffset + f.valueLead, n - f.valueLead)
      }
    if (there) ownAge = Age.of(base, offset, length)
    there
  }

  private def lies(valueBase: AnyRef, valueOffset: Long, valueLength: Int): Boolean = {
    base = valueBase
    offset = valueOffset
    length = valueLength
    true
  }

  /** In seconds since the epoch; `Unknown`: it has none. */
  def age: Long = ownAge
  def isDue(ttl: TimeToLive): Boolean = ownAge != Age.Unknown && ownAge <= ttl.deadline

  /** Write the value of a row here, with an age. The row may be this one. */
  def writeAged(from: StoredRow, newAge: Long): Unit = {
    ownAge = newAge
    write(from.base, from.offset, Age.rowBytes(from.length) + Age.Size, newAge)
  }

  def remove(): Unit = {
    write(null, 0L, -1, Age.Unknown)
    engine.batch.count(slot, before = true, after = false)
  }

  private def write(
      valueBase: AnyRef, valueOffset: Long, valueLength: Int, itsAge: Long): Unit = {
    f.table.write(key, Bytes.ArrayOffset, keyLength, hash, found, slot, 0, valueBase, valueOffset,
      valueLength, tail = itsAge)
    engine.batchLog.afterWrite(f)
  }

  def noteIn(file: AgeFile): Unit = file.add(slot, key, Bytes.ArrayOffset, keyLength)
}
