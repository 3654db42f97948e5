package org.apache.spark.sql.millpond.base

/** How large a row may be: its key and its value, or a key and all its values, as they are encoded.
  * The store refuses a larger one before anything changes. Readers accept changelog blocks of up to
  * twice the size, so they can read every row that the store took. */
private[millpond] object RowLimit {
  val MostBytes: Int = 512 << 20
  private val Large = 16 << 20
  private val KeptBytes = 1 << 20

  def exceeded(family: String, bytes: Long): MillpondException =
    MillpondError.of("ROW_TOO_LARGE",
      s"a row of column family '$family' has $bytes bytes; key and value, or a key and all its " +
        s"values, may have at most $MostBytes.")

  /** The size of a buffer for `bytes` bytes that will be used again: with room to grow, unless
    * that would be a lot. */
  def bufferFor(bytes: Int): Int = if (bytes > Large) bytes else bytes * 2

  /** Whether a buffer that will be used again was made for far more than `bytes` bytes. A large row
    * must not stay with a thread for good. */
  def isExcess(capacity: Int, bytes: Int): Boolean = capacity > KeptBytes && bytes < capacity / 8
}
