package org.apache.spark.sql.millpond.engine

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Daemons, Seams}

/** Which engine of this executor writes to a store.
  *
  * If a query is started again in a Spark application that goes on, its next run has engines of its
  * own beside those of the run before, which Spark closes one to two minutes later. Until then they
  * would take half of the memory budget from the stores that do the work. So an engine gives its
  * rows up as soon as another run begins to write to the same store, or to read what it writes
  * later; if a task has it then, as soon as that task ends. State readers are of no run of the
  * query. */
private[millpond] object Runs extends Logging {
  private final case class Key(root: String, operator: Long, partition: Int, name: String)

  private val writers = new ConcurrentHashMap[Key, StoreEngine]
  private lazy val pool = Daemons.one("millpond-runs")

  private def key(engine: StoreEngine): Key = {
    val id = engine.context.storeId
    Key(id.checkpointRootLocation, id.operatorId, id.partitionId, id.storeName)
  }

  /** This engine is about to write to its store. The engine of a run before gives its rows up at
    * once, or in the background if it is busy. Callers hold no lock. */
  def writes(engine: StoreEngine): Unit = {
    val before = writers.put(key(engine), engine)
    if (before != null && before.context.runId != engine.context.runId) end(before)
  }

  /** The engine of an ended run gives its rows up. Callers hold no lock. */
  def end(before: StoreEngine): Unit = guarded(before) {
    // what the next run loads then needs the room, and can drop nothing
    if (before.isHeap) before.giveUp()
    else if (!before.giveUpIfFree())
      Seams.start(s"end ${before.context.label}", () => guarded(before)(before.giveUp()))(
        pool.execute(_))
  }

  private def guarded(before: StoreEngine)(work: => Unit): Unit =
    try work
    catch {
      case NonFatal(e) => logWarning(
          s"store ${before.context.label} of an ended run keeps its rows: ${e.getMessage}")
    }

  def closed(engine: StoreEngine): Unit = writers.remove(key(engine), engine): Unit
}
