package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.millpond.base.{Event, EventBuffer}

/** The events of one store. Any thread notes them, under any lock; a thread that holds none logs
  * them. */
private[millpond] final class StoreEvents(runId: String, id: StateStoreId) {
  private val buffer = new EventBuffer
  private val common = Seq("run_id" -> runId, "operator" -> id.operatorId,
    "partition" -> id.partitionId, "store" -> id.storeName)

  def note(name: String, fields: (String, Any)*): Unit =
    buffer.note(Event(name, common ++ fields))

  def noteError(name: String, e: Throwable, fields: (String, Any)*): Unit =
    buffer.note(Event(name, common ++ fields ++ Event.describe(e), Some(e)))

  /** Callers hold no lock. */
  def publish(): Unit = buffer.publish()
}
