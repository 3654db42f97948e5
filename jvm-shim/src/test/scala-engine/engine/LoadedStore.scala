package org.apache.spark.sql.millpond.engine

import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.Options
import org.apache.spark.sql.millpond.changelog.Change
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}
import org.apache.spark.sql.millpond.rows.{
  Family, FamilyKind, FamilyShape, KeyCount, KeyGroups, StoreLayout
}

/** A store at version 1, with a snapshot of it, and all its rows in memory. It has no provider and
  * no storage. Another store, which is but a share, has a part of the budget. */
private[engine] final class LoadedStore(isHeap: Boolean, rows: Int) {
  val session = new Session(-1L)
  val engine: StoreEngine = {
    val conf = new SQLConf
    conf.setConfString(Options.prefix + "memory.budget", LoadedStore.BudgetBytes.toString)
    val hadoop = new Configuration(false)
    hadoop.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID.toString)
    val id = StateStoreId("file:/nowhere/state", 0L, 0)
    new StoreEngine(new StoreContext(id, new StateStoreConf(conf), hadoop))
  }
  val other: MemoryBudget#Share = new engine.budget.Share
  other.take(true)
  engine.enter(session)
  val family: Family = engine.diskLock.during(engine.synchronized {
    engine.status.beginLoad(): Unit
    val layout = new StoreLayout(KeyGroups(1, 1), 1, 0, "", None)
    engine.beginAs(layout, isHeap)
    val shape = FamilyShape(FamilyKind.Point, internal = false, multi = false, plainRows = true)
    val made = engine.families.add("default", 0, shape, onDisk = false)
    (0 until rows).foreach(write(made, _))
    made.table.commitBatch(1)
    val point = Point(1L, "one", KeyCount.empty(layout))
    engine.loaded(Committed.Nothing.copy(version = 1L, lineageBase = 1L, lineage = Vector("one"),
      keys = point.keys, anchor = point, flushed = point, snapshot = Some(1L -> "one")))
    engine.status.loadDone()
    made
  })

  private def key(n: Int): Array[Byte] = Change.bytes(f"$n%08d")

  private def find(f: Family, n: Int): Long = {
    val k = key(n)
    f.table.find(k, Bytes.ArrayOffset, k.length, Bytes.hash(k, Bytes.ArrayOffset, k.length))
  }

  private def write(f: Family, n: Int): Unit = {
    val k = key(n)
    val value = new Array[Byte](100)
    f.table.write(k, Bytes.ArrayOffset, k.length, Bytes.hash(k, Bytes.ArrayOffset, k.length),
      find(f, n), 0, 0, value, Bytes.ArrayOffset, value.length)
  }

  /** Whether memory has a row. */
  def has(n: Int): Boolean = engine.synchronized(find(family, n) != 0L)
  /** Part of the running batch. */
  def put(n: Int): Unit = engine.synchronized(write(family, n))
  def close(): Unit = { other.take(false); engine.close() }
}

private[engine] object LoadedStore {
  val BudgetBytes: Long = 1L << 20
}
