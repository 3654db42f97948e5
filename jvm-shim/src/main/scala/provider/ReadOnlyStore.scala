package org.apache.spark.sql.millpond.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** A read store, of the type that Spark's RocksDB provider gives its own: every
  * write is refused. */
private[provider] trait ReadOnlyStore extends StateStore {
  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = refuse("put")
  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    refuse("putList")
  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    refuse("merge")
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    refuse("mergeList")
  override def remove(key: UnsafeRow, colFamilyName: String): Unit = refuse("remove")
  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit =
    refuse("deleteRange")
  override def createColFamilyIfAbsent(colFamilyName: String, keySchema: StructType,
      valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    refuse("createColFamilyIfAbsent")
  override def removeColFamilyIfExists(colFamilyName: String): Boolean =
    refuse("removeColFamilyIfExists")
  override def commit(): Long = refuse("commit")
  override def hasCommitted: Boolean = false
  override def metrics: StateStoreMetrics = refuse("metrics")
  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    refuse("getStateStoreCheckpointInfo")

  private def refuse(operation: String): Nothing =
    throw StateStoreErrors.unsupportedOperationException(operation, "a read store")
}
