package org.apache.spark.sql.millpond.provider

import org.apache.spark.sql.execution.streaming.state.StateStore

/** What the write store offers beside the contract that all minor versions share:
  * nothing, in 4.2. */
private[provider] trait CompatibleStore extends StateStore {
  protected def reusableScan(colFamilyName: String): ReusableScan
}
