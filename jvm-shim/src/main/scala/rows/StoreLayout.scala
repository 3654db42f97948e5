package org.apache.spark.sql.millpond.rows

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.millpond.base.KeyPlacement

/** Where the store's rows belong: key groups, slots, and the folder for unfinished files. */
final class StoreLayout(val groups: KeyGroups, val partitions: Int, val partition: Int,
    val stagingDir: String, unscalable: Option[String]) {
  private var reason: String = unscalable.orNull
  private var unproven = false // nobody knows yet by what Spark placed the keys
  // Spark makes each key of the columns by which it places it; whether by pandas
  private var areMade, areLossy = false
  /** Whether keys carry the slot of their group; a store without a known partition key
    * keeps all in slot 0. */
  private val slotted: Boolean = unscalable.isEmpty
  /** The slot of keys whose group is unknown: 0 if all keys have it, or -1 for any slot. */
  val unknownSlot: Int = if (slotted) -1 else 0

  /** How many key groups the partition owns, and which of them, counted from 0,
    * a slot belongs to. */
  val groupCount: Int = groups.maxParallelism / partitions
  def ordinal(slot: Int): Int = groups.group(slot) / partitions

  def scalable: Boolean = reason == null && !unproven
  def unscalableReason: String =
    if (reason != null) reason else if (unproven) StoreLayout.Unproven else ""

  /** No key is known to be in the wrong place. */
  def isInOrder: Boolean = reason == null

  /** What a file says of the store: a key is in the wrong place, or may be. Once it is, it is. But
    * what nobody knew when one file was written, a later one may know.
    * @param why empty: all keys are in their places */
  def mark(why: String): Unit =
    if (why == StoreLayout.Unproven) unproven = true
    else {
      unproven = false
      if (reason == null && why.nonEmpty) reason = why
    }

  /** Spark places the keys in this way, also those that the store has. */
  def place(how: KeyPlacement): Unit = how match {
    case KeyPlacement.ByKey(lossy) => make(lossy, proven = true)
    case KeyPlacement.Unknown(lossy) => make(lossy, proven = false)
    case KeyPlacement.Elsewhere => mark(StoreLayout.Elsewhere)
  }

  private def make(lossy: Boolean, proven: Boolean): Unit = {
    unproven = !proven
    areMade = true
    areLossy = lossy
  }

  /** The slot of a key group. */
  def slot(group: Int): Int = if (!slotted || group < 0) 0 else groups.slot(group)

  /** The slot of a key of a column family. If its group is not one of this partition's, or if
    * nobody knows it, mark the store: a rescale would tear it apart. */
  def checkedSlot(key: UnsafeRow, of: PartitionKey, family: String): Int = {
    val group = of.group(key)
    if (slotted && reason == null) {
      // files keep it, and its first words tell readers that keys have slots all the same
      if (group < 0)
        reason = s"a key of key group ? is in partition $partition of $partitions: " +
          s"Millpond does not know what Spark hashes of the keys of column family '$family'"
      else if (group % partitions != partition)
        reason =
          s"a key of key group $group is in partition $partition of $partitions: " +
            "Spark did not place it by the key that Millpond assumes"
      else if (areMade && of.mayBeMade(key, areLossy)) reason = StoreLayout.Made
    }
    slot(group)
  }

  def describe(target: ObjectNode): Unit = {
    target.put("max_parallelism", groups.maxParallelism).put("base", groups.base)
      .put("partitions", partitions)
      .put("scalable", scalable).put("reason", unscalableReason)
    ()
  }
}

object StoreLayout {
  /** The reason to mark a store whose keys Spark placed by something else. In one partition no key
    * is in a wrong one, so the keys themselves do not tell. */
  val Elsewhere: String = "a key of key group ? may be in any partition: Spark did not place it " +
    "by the key that Millpond assumes, but by grouping columns of other types, in another order " +
    "or with a collation, or by times of another time zone, or by fields with capital letters, " +
    "which its Python worker does not find"

  /** The reason to mark a store with a key that Spark may have made of another one. */
  val Made: String = "a key of key group ? may be in any partition: Spark may have placed it by " +
    "another key, and stored this one; with pandas it stores NaN for NULL among floats, and NULL " +
    "for whole numbers of a batch that has a NULL among them, and it stores other days for those " +
    "that October 1582 did not have"

  /** The reason while only the operator's own tasks can tell whether it is so. They do with the
    * first batch. */
  val Unproven: String = "a key of key group ? may be in any partition: the state comes from " +
    "another store, and by what Spark placed it shows when the query runs; start the query once"
}
