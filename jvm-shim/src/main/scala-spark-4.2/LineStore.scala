package org.apache.spark.sql.millpond

import org.apache.spark.sql.execution.streaming.state.StateStore

/** What the write store offers beside the contract that all minor lines share: nothing, in 4.2. */
private[millpond] trait LineStore extends StateStore {
  protected def reusableScan(colFamilyName: String): ReusableScan
}
