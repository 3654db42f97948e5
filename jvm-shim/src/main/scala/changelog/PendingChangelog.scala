package org.apache.spark.sql.millpond.changelog

import com.fasterxml.jackson.databind.JsonNode

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

  /** Check that a file is still the one that was planned.
    * @param usesCommitIds whether the file of each attempt has a name of its own; if not, another
    * attempt may have replaced it after the plan */
  def check(c: PendingChangelog, header: JsonNode, usesCommitIds: Boolean): Unit = {
    val (version, id) = (header.get("version").asLong, header.get("id").asText)
    if (version == c.version && id != c.id && !usesCommitIds) throw replaced(c)
    if (version != c.version || id != c.id)
      throw MillpondError.changelogDamaged(c.path,
        s"it holds version $version ($id), not version ${c.version} (${c.id})")
  }

  def replaced(c: PendingChangelog): MillpondException =
    MillpondError.of("CHANGELOG_REPLACED",
      s"the changelog ${c.path} was replaced by another attempt of version ${c.version}.")
}
