package org.apache.spark.sql.millpond.provider

import scala.collection.concurrent.TrieMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.operators.stateful.join.{
  StreamingSymmetricHashJoinHelper, SymmetricHashJoinStateManager
}
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}
import org.apache.spark.sql.millpond.base.{MillpondError, TimeToLive}
import org.apache.spark.sql.millpond.engine.{JoinCounts, Session}

/** Begins a batch's work on ages. A join has two stores a side: how many rows a key has, and the
  * rows by key and index. Rows end in the second, which changes the first. Spark opens them in this
  * order, in one task, and commits both or runs the task again on the version before. */
private object JoinStores {
  import StreamingSymmetricHashJoinHelper.{LeftSide, RightSide}

  private val countsOf = Seq(LeftSide, RightSide).map { side =>
    val Seq(counts, rows) = SymmetricHashJoinStateManager.allStateStoreNames(side): @unchecked
    rows -> counts
  }.toMap
  private val namesOfCounts = countsOf.values.toSet
  // by attempt of a task
  private val open = TrieMap.empty[(Long, StateStoreId), StoredCounts]

  def begin(store: StoreProvider, session: Session, version: Long, ttl: Option[TimeToLive]): Unit =
    if (ttl.isEmpty) store.engine.ages.begin(session, None)
    else {
      val id = store.stateStoreId
      if (namesOfCounts(id.storeName)) {
        // a count has no age: it ends with its last row
        store.engine.ages.begin(session, None)
        open.put((session.attempt, id), new StoredCounts(store, session, version))
        Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ =>
          open.remove((session.attempt, id)): Unit))
      } else
        store.engine.ages.begin(session, ttl,
          countsOf.get(id.storeName).map(name =>
            countsBeside(id.copy(storeName = name), session, version)))
    }

  private def countsBeside(id: StateStoreId, session: Session, version: Long): JoinCounts =
    open.get((session.attempt, id)).filter(_.isAt(version)).getOrElse(
      throw MillpondError.internal(
        s"task attempt ${session.attempt} did not open ${id.storeName} of operator " +
          s"${id.operatorId}, partition ${id.partitionId}, on version $version before the rows " +
          "that it counts: no row of the join can end."))
}

/** The counts in the store that a task opened. */
private final class StoredCounts(store: StoreProvider, session: Session, version: Long)
    extends JoinCounts {
  private val family = store.engine.family(session, StateStore.DEFAULT_COL_FAMILY_NAME)
  private val count = {
    val row = new UnsafeRow(1)
    row.pointTo(new Array[Byte](16), 16)
    row
  }

  def isAt(wanted: Long): Boolean = version == wanted && store.owns(session)

  override def of(key: UnsafeRow): Long = {
    val row = store.engine.rows.get(session, family, key)
    if (row == null) 0L else row.getLong(0)
  }

  override def set(key: UnsafeRow, rows: Long): Unit = {
    count.setLong(0, rows)
    store.engine.rows.write(session, family, key, if (rows == 0L) null else count)
  }
}
