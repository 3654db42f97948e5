package org.apache.spark.sql.millpond

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreCustomSizeMetric}

/** What differs between minor lines of Spark; this is 4.3. */
private[millpond] object SparkLine {
  /** 4.3 tells sizes of snapshots from others. */
  def sizeMetric(name: String, description: String): StateStoreCustomMetric = StateStoreCustomSizeMetric(name, description)
}
