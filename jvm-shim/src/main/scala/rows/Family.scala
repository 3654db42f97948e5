package org.apache.spark.sql.millpond.rows

import org.apache.spark.sql.millpond.memory.{MemoryBudget, Table}

/** The rows of one column family: their memory tier, and how Spark's rows become bytes.
  * Not thread-safe. */
final class Family(val name: String, val id: Int, val shape: FamilyShape, budget: MemoryBudget) {
  var table = new Table(budget, shape.kind.shape)
  /** Whether it is part of the state. Else only a reader registered it, or the operator at another
    * version, and it has no rows. */
  var exists = false
  /** The job dropped it; its deletes must still reach the disk tier. */
  var removed = false
  var removedBefore = false // when the batch began
  // version of the changelog that deletes its rows; Family.Uncommitted until the commit
  var removedAt = 0L
  var backAt = 0L // version of the changelog that made it anew afterwards; likewise
  private var removedAtBefore = 0L
  var createdAt = Family.Uncommitted // a version whose changelog or snapshot lists it
  private var codec: FamilyCodec = null
  private var closed = false
  /** The session that checked the form of a row of this family. */
  var validatedBy: AnyRef = null

  /** The running batch drops it. */
  def remove(): Unit = {
    removed = true
    removedAtBefore = removedAt
    removedAt = Family.Uncommitted
  }

  /** The running batch makes it part of the state, perhaps anew. */
  def bringBack(): Unit = {
    exists = true
    if (removed) {
      removed = false
      if (removedAt == Family.Uncommitted) removedAt = removedAtBefore
      else backAt = Family.Uncommitted
    }
  }

  /** Whether a version that is committed dropped it, and nothing has made it anew since. */
  def wasDroppedBefore: Boolean = removed && removedAt != Family.Uncommitted

  /** Whether it was dropped at a version, whatever came later. */
  def wasRemoved(asOf: Long): Boolean = removedAt <= asOf && (removed || backAt > asOf)

  /** A commit: the batch's changes are part of a version now. */
  def committed(version: Long): Unit = {
    if (removed && removedAt == Family.Uncommitted) removedAt = version
    if (backAt == Family.Uncommitted) backAt = version
    if (exists && createdAt == Family.Uncommitted) createdAt = version
  }

  /** An abort: take back the batch's changes. */
  def undo(): Unit = {
    if (removedAt == Family.Uncommitted) removedAt = removedAtBefore
    if (backAt == Family.Uncommitted) backAt = 0L
    removed = removedBefore
  }

  /** Begin with an empty table: the disk tier has all rows. An open iterator keeps the old
    * table until it ends. */
  def giveUpRows(): Unit = {
    val full = table
    table = new Table(budget, kind.shape)
    table.lack()
    full.retire()
  }

  def kind: FamilyKind = shape.kind
  def keyLead: Int = shape.keyLead
  def keyExtra: Int = shape.keyExtra
  def valueLead: Int = shape.valueLead
  def isRegistered: Boolean = codec != null && !removed
  def register(newCodec: FamilyCodec): Unit = codec = newCodec
  def rows: FamilyCodec = codec

  /** Length of the scan prefix within an encoded key (kind prefix only). */
  def prefixLength(base: AnyRef, offset: Long): Int =
    if (kind == FamilyKind.Prefix) FamilyCodec.prefixLength(base, offset) else 0

  /** The store has forgotten it. A warm-up may still come to its rows. */
  def isClosed: Boolean = closed
  def close(): Unit = { closed = true; table.close() }
}

object Family {
  val Uncommitted: Long = Long.MaxValue
}
