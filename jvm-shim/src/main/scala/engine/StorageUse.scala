package org.apache.spark.sql.millpond.engine

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric

/** Requests to an object storage, as the agent counts them for all stores of the executor.
  * Each is reported once. */
private[engine] final class StorageUse {
  private val counts = scala.collection.mutable.HashMap.empty[String, Long]

  def add(answer: JsonNode): Unit = {
    val used = if (answer == null) null else answer.get("storage")
    if (used != null) counts.synchronized {
      used.fieldNames.forEachRemaining(name =>
        counts(name) = counts.getOrElse(name, 0L) + used.get(name).asLong)
    }
  }

  def take(): Map[StateStoreCustomMetric, Long] = counts.synchronized {
    val out = StoreMetrics.storage.map { case (name, metric) =>
      metric -> counts.getOrElse(name, 0L)
    }
    counts.clear()
    out
  }
}
