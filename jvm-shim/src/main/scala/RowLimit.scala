package org.apache.spark.sql.millpond

/** How large a row may be: its key and its value, or a key and all its values, as they are encoded. A larger one is refused before anything
  * changes. Blocks of changelogs are read up to twice the size, so a row that was taken can always be read. */
private[millpond] object RowLimit {
  val MostBytes: Int = 512 << 20
  private val Large = 16 << 20

  def exceeded(family: String, bytes: Long): MillpondException =
    MillpondError.of("ROW_TOO_LARGE",
      s"a row of column family '$family' has $bytes bytes; key and value, or a key and all its values, have $MostBytes at most.")

  /** The size of a buffer for `bytes` bytes that is kept for what follows: with room to grow, unless that would be a lot. */
  def bufferFor(bytes: Int): Int = if (bytes > Large) bytes else bytes * 2
}
