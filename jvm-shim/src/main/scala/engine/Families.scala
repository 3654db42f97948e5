package org.apache.spark.sql.millpond.engine

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.millpond.memory.{MemoryBudget, Table}
import org.apache.spark.sql.millpond.rows.{Family, FamilyShape}

/** The column families that a store knows. Callers hold `monitor`, the store's own: the calls that
  * change something check it. */
private[millpond] final class Families(monitor: AnyRef, budget: MemoryBudget) {
  private val byName = new java.util.LinkedHashMap[String, Family]

  def values: java.util.Collection[Family] = byName.values
  def all: Iterable[Family] = byName.values.asScala
  /** The family, or null. */
  def get(name: String): Family = byName.get(name)

  /** Make a family known under an id; ids are durable (every changelog and manifest lists them). */
  def add(name: String, id: Int, shape: FamilyShape, onDisk: Boolean): Family = {
    check()
    val f = new Family(name, id, shape, budget)
    if (onDisk) f.table.lack()
    byName.put(name, f)
    f
  }

  /** Whether the family is part of the state, or its deletes still are. */
  def has(name: String): Boolean = {
    val f = byName.get(name)
    f != null && (f.exists || f.removed)
  }

  /** Forget a family that was only registered, if its shape differs. It has no rows. */
  def forget(name: String, shape: FamilyShape): Unit = {
    val f = byName.get(name)
    if (f != null && f.shape != shape && f.table.touchedCount == 0) forgetAll(_ eq f)
  }

  def forgetAll(unwanted: Family => Boolean): Unit = {
    check()
    byName.values.removeIf { f =>
      val gone = unwanted(f)
      if (gone) f.close()
      gone
    }: Unit
  }

  /** Begin with empty tables: the disk tier has all rows. */
  def giveUpRows(): Unit = {
    check()
    values.forEach(_.giveUpRows())
  }

  /** All memory of the tables. */
  def usedBytes: Long = total(_.usedBytes)
  /** The part of `usedBytes` that rows fill; the rest serves the next writes. */
  def liveBytes: Long = total(_.liveBytes)
  /** User-visible rows in memory. */
  def presentCount: Long =
    values.asScala.iterator.filter(!_.shape.internal).map(_.table.presentCount.toLong).sum

  private def total(of: Table => Long): Long = {
    var sum = 0L
    values.forEach(f => sum += of(f.table))
    sum
  }

  private def check(): Unit = assert(Thread.holdsLock(monitor), "without the store's monitor")
}
