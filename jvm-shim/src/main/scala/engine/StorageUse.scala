package org.apache.spark.sql.millpond.engine

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric
import org.apache.spark.sql.millpond.observe.Counters

/** Requests to an object storage, as the agent counts them for all stores of the executor.
  * Each is reported once. */
private[engine] final class StorageUse {
  private val counts = scala.collection.mutable.HashMap.empty[String, Long]

  def add(answer: JsonNode): Unit = {
    val used = if (answer == null) null else answer.get("storage")
    if (used != null) counts.synchronized {
      used.fieldNames.forEachRemaining { name =>
        val count = used.get(name).asLong
        counts(name) = counts.getOrElse(name, 0L) + count
        Counters.storageUsed(name, count)
      }
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
