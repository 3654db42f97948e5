package org.apache.spark.sql.execution.streaming

import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution

/** Reaches what Spark shows to its own package alone. */
object MetadataAccess {
  def writeOperators(execution: IncrementalExecution): Unit =
    execution.writeRecordedStateMetadata()
}
