package org.apache.spark.sql.millpond.base

/** A store for reading, of which a scan of a prefix can be ended before its last row. */
private[millpond] trait EndsScan {
  def endPrefixScan(): Unit
}
