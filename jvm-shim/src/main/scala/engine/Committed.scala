package org.apache.spark.sql.millpond.engine

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.rows.KeyCount

/** A version of a store: its number, its id, its live keys. Nobody changes `keys`. */
private[engine] final case class Point(version: Long, id: String, keys: KeyCount)

/** What a store has committed. The engine swaps it as one value under its monitor, so all parts of
  * it always belong to the same version.
  *
  * @param lineage ids of the versions `lineageBase` to `version`
  * @param keys live user-visible keys; nobody changes them
  * @param keysBefore those of the version before, if memory can go back to it
  * @param pending changelogs that the disk tier does not hold yet
  * @param anchor the newest version that Spark proved committed by opening it for writing
  * @param flushed the version of the disk tier
  * @param snapshot version and id of the newest snapshot on this lineage
  * @param composed a rescale wrote the snapshot that was loaded. The next snapshot of this store is
  * an ordinary one
  * @param emptyBase the next changelog starts from empty state, whatever its version
  * @param emptyAt that version, else -1. Other readers still read its rows, so it gets no
  * snapshot */
private[engine] final case class Committed(version: Long, lineageBase: Long,
    lineage: Vector[String], keys: KeyCount, keysBefore: Option[KeyCount],
    pending: Vector[PendingChangelog], anchor: Point, flushed: Point,
    snapshot: Option[(Long, String)], composed: Boolean, emptyBase: Boolean, emptyAt: Long) {

  def id: String = lineage.lastOption.getOrElse("")
  def idBefore: String = lineage(lineage.size - 2)
  def idOf(at: Long): String = lineage((at - lineageBase).toInt)
  def snapshotVersion: Long = snapshot.fold(0L)(_._1)
  /** About how much memory dirty rows fill: those that the disk tier does not hold yet. */
  def dirtyBytes: Long = pending.iterator.map(_.memoryBytes).sum

  /** Whether a flush must run beside the batch that begins: dirty rows, those that this batch and
    * the next one write, if both write as much as the last one, would fill more than `share`. Few
    * large files cost the compactions less than many small ones. */
  def mustFlushBehind(share: Long): Boolean =
    dirtyBytes + 2 * pending.lastOption.fold(0L)(_.memoryBytes) > share

  /** A micro-batch begins on `version`, so this version is proven committed. */
  def proven: Committed = copy(anchor = Point(version, id, keys))

  /** A batch is durable.
    * @param detached whether memory can take it back */
  def next(changelog: PendingChangelog, liveKeys: KeyCount, detached: Boolean): Committed =
    copy(
      version = changelog.version,
      lineage = lineage :+ changelog.id,
      keys = liveKeys,
      keysBefore = if (detached) Some(keys) else None,
      pending = pending :+ changelog,
      emptyBase = false
    )

  /** Whether memory may go back to the version before. */
  def canGoBack: Boolean = lineage.size >= 2 && keysBefore.isDefined

  def back: Committed = copy(version = version - 1, lineage = lineage.init, keys = keysBefore.get,
    keysBefore = None, pending = pending.filter(_.version < version))

  /** The store has read the changelogs that follow. Each names the newest snapshot that its writer
    * knew.
    *
    * @param replayed the changelogs and their rows
    * @param newest header of the last changelog */
  def caughtUp(replayed: Replay, newest: JsonNode, ids: Vector[String]): Committed = {
    val at = newest.get("version").asLong
    val base = newest.get("lineage_base").asLong
    val ancestors = newest.get("lineage").elements.asScala.map(_.asText).toVector
    val knowsNewer = base > lineageBase && ancestors.head.nonEmpty
    copy(
      version = at,
      lineageBase = if (knowsNewer) base else lineageBase,
      lineage = if (knowsNewer) ancestors :+ ids.last else lineage ++ ids,
      keys = replayed.keys,
      keysBefore = None,
      pending = replayed.pending,
      anchor = Point(at, ids.last, replayed.keys),
      flushed = replayed.flushed,
      snapshot = if (knowsNewer) Some(base -> ancestors.head) else snapshot,
      emptyBase = false
    )
  }

  /** The disk tier is at `point`. */
  def flushedTo(point: Point): Committed =
    copy(flushed = point, pending = pending.filter(_.version > point.version))

  /** A snapshot is in storage: the next changelogs name it as the base of their lineage.
    * @param stillComposed it was made before the files of other partitions were rewritten */
  def withSnapshot(at: Long, snapshotId: String, stillComposed: Boolean): Committed = copy(
    snapshot = Some(at -> snapshotId),
    composed = composed && stillComposed,
    lineage = lineage.drop(math.max(0L, at - lineageBase).toInt),
    lineageBase = math.max(at, lineageBase)
  )
}

private[engine] object Committed {
  /** Of a store that is not loaded. */
  val Nothing: Committed = {
    val none = Point(-1L, "", null)
    Committed(-1L, 0L, Vector.empty, null, None, Vector.empty, none, none, None, composed = false,
      emptyBase = false, -1L)
  }
}
