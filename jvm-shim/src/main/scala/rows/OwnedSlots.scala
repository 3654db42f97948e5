package org.apache.spark.sql.millpond.rows

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

/** Ascending, disjoint half-open ranges of slots. */
private[millpond] final class OwnedSlots(val ranges: Vector[(Int, Int)]) {
  def contains(slot: Int): Boolean = {
    var low = 0
    var high = ranges.size - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val (from, until) = ranges(middle)
      if (slot < from) high = middle - 1
      else if (slot >= until) low = middle + 1
      else return true
    }
    false
  }

  /** The first slot above `slot` that is owned; Int.MaxValue if there is none. */
  def above(slot: Int): Int = ranges.find(_._1 > slot).fold(Int.MaxValue)(_._1)

  /** The ranges between those owned, up to `end` (exclusive). */
  def gaps(end: Int): Vector[(Int, Int)] =
    ((0 -> 0) +: ranges :+ (end -> end)).sliding(2).collect {
      case Seq((_, from), (until, _)) if from < math.min(until, end) => from -> math.min(until, end)
    }.toVector
}

private[millpond] object OwnedSlots {
  def of(described: JsonNode): OwnedSlots =
    new OwnedSlots(described.elements.asScala.map(r => r.get(0).asInt -> r.get(1).asInt).toVector)
}

/** Tells of a physical key whether its slot is owned: it leads the key or ends it, by the kind
  * of the column family. */
private[millpond] final class FamilyOwnership(described: JsonNode) {
  private val shapes = {
    val byId = new Array[FamilyShape](0x10000)
    described.elements.asScala.foreach(f => byId(f.get("id").asInt) = FamilyShape.of(f))
    byId
  }

  def owns(owned: OwnedSlots, key: Array[Byte], at: Int, length: Int): Boolean = {
    val shape = shapes(FamilyOwnership.family(key, at))
    shape != null && owned.contains(shape.slotIn(key, at, length))
  }
  def owns(owned: OwnedSlots): RowFilter = (key, at, length) => owns(owned, key, at, length)
  /** Ids of the families whose slots lead their keys, and of those whose slots end them. */
  def leading: Seq[Int] = shapes.indices.filter(i => shapes(i) != null && !shapes(i).kind.crossKey)
  def trailing: Seq[Int] = shapes.indices.filter(i => shapes(i) != null && shapes(i).kind.crossKey)
}

private[millpond] object FamilyOwnership {
  def lead(key: Array[Byte], at: Int): Int = ((key(at) & 0xFF) << 8) | (key(at + 1) & 0xFF)
  def family(key: Array[Byte], at: Int): Int = ((key(at + 2) & 0xFF) << 8) | (key(at + 3) & 0xFF)
}

/** Which physical keys a reader of changelogs wants. */
private[millpond] trait RowFilter {
  def wants(key: Array[Byte], at: Int, length: Int): Boolean
}
