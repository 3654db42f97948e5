package org.apache.spark.sql.millpond.rows

import org.apache.spark.unsafe.Platform

/** The age of a row: four bytes behind its value, little-endian, seconds since the epoch. The
  * size of an `UnsafeRow` is a multiple of eight, so a value tells by its size if it has one. */
private[millpond] object Age {
  val Size = 4
  val Unknown: Long = -1L

  /** The size of the row, without its age. */
  def rowBytes(valueLength: Int): Int = valueLength & ~7

  /** The age at the end of a value; `Unknown`: it has none. */
  def of(base: AnyRef, offset: Long, valueLength: Int): Long =
    if ((valueLength & 7) == Size)
      Platform.getInt(base, offset + valueLength - Size) & 0xFFFFFFFFL
    else Unknown
}
