package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.base.StoreLock
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.rows.StoreLayout

/** What the parts that work for the whole store see of it. Nothing here leads the store to another
  * version. `this` is the store's monitor. */
private[engine] trait StoreView {
  def context: StoreContext
  def metrics: StoreMetrics
  private[millpond] def shown: Shown
  private[engine] def diskLock: StoreLock
  private[engine] def budget: MemoryBudget
  /** The store's part of it. */
  private[engine] def share: MemoryBudget#Share
  private[engine] def status: StoreStatus
  private[engine] def families: Families
  private[engine] def tier: StoreTier
  private[engine] def manifests: ManifestUse

  /** What is committed and in memory. Who needs two looks at the same takes the monitor. */
  private[engine] def committed: Committed

  private[engine] def layout: StoreLayout

  /** Whether all state stays in memory, and the disk tier exists only while a snapshot is made. */
  private[engine] def isHeap: Boolean
}
