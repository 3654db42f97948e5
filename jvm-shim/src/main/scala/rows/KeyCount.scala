package org.apache.spark.sql.millpond.rows

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/** How many live keys a store has, of the families that are the user's.
  *
  * @param total -1: not counted
  * @param byGroup of the key groups partition, partition + partitions, ...; null: not known. Nobody
  * changes it but `add` */
private[millpond] final class KeyCount private (layout: StoreLayout, var total: Long,
    val byGroup: Array[Int]) {
  def isKnown: Boolean = total >= 0

  /** Some keys more, or fewer, of a slot. */
  def add(slot: Int, keys: Int): Unit = {
    total += keys
    if (byGroup != null) byGroup(layout.ordinal(slot)) += keys
  }

  def copy: KeyCount = new KeyCount(layout, total, if (byGroup == null) null else byGroup.clone())

  def describe(target: ObjectNode): Unit = {
    target.put("keys", total)
    if (byGroup != null && isKnown && layout.isInOrder) {
      val list = target.putArray("group_keys")
      byGroup.foreach(list.add)
    }
  }
}

private[millpond] object KeyCount {
  private val MostGroups = 1024 // of one store: every changelog lists them

  def empty(layout: StoreLayout): KeyCount = new KeyCount(layout, 0L,
    if (layout.groupCount <= MostGroups) new Array[Int](layout.groupCount) else null)
  def unknown(layout: StoreLayout): KeyCount = new KeyCount(layout, -1L, null)

  /** As `describe` wrote it, here or in the agent. */
  def of(layout: StoreLayout, described: JsonNode): KeyCount = {
    val list = described.path("group_keys")
    val groups = if (list.isArray && list.size == layout.groupCount && list.size <= MostGroups)
      Array.tabulate(list.size)(i => list.get(i).asInt)
    else null
    new KeyCount(layout, described.get("keys").asLong, groups)
  }
}
