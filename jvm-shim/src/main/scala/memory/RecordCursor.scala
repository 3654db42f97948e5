package org.apache.spark.sql.millpond.memory

/** Addresses one after the other; 0 at the end. */
private[millpond] trait RecordCursor {
  def next(): Long
}

private[memory] final class ArrayCursor(records: Array[Long]) extends RecordCursor {
  private var i = 0
  override def next(): Long = if (i < records.length) { i += 1; records(i - 1) }
  else 0L
}
