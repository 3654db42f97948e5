package org.apache.spark.sql.millpond.changelog

import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException}
import org.apache.spark.sql.millpond.rows.RowFilter

/** A changelog that the disk tier does not hold yet.
  *
  * @param memoryBytes about how much memory its rows fill
  * @param filter its wanted rows; null: all */
private[millpond] final case class PendingChangelog(version: Long, id: String, path: String,
    memoryBytes: Long, filter: RowFilter = null) {
  /** When this executor wrote or found it, in ms since the epoch. */
  val sinceMs: Long = System.currentTimeMillis
  /** How many of its blocks the disk tier holds already. Only holders of `diskLock` change it. */
  var flushedBlocks = 0
  def isFlushed: Boolean = flushedBlocks == PendingChangelog.Whole
}

private[millpond] object PendingChangelog {
  val Whole: Int = Int.MaxValue

  def replaced(c: PendingChangelog): MillpondException =
    MillpondError.of("CHANGELOG_REPLACED",
      s"the changelog ${c.path} was replaced by another attempt of version ${c.version}.")
}
