// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * A state store that keeps nothing beyond the process: rows of one family in a map, no file, no
 * version. What a query takes with it is Spark's own time.
 */
final class NothingProvider extends StateStoreProvider {
  private var id: StateStoreId = _
  private var conf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private val rows = new java.util.HashMap[UnsafeRow, UnsafeRow]

  override def init(stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useColumnFamilies: Boolean,
      storeConfs: StateStoreConf, hadoopConfs: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    id = stateStoreId
    conf = storeConfs
    hadoopConf = hadoopConfs
  }
  override def stateStoreId: StateStoreId = id
  override def close(): Unit = ()
  override def getStore(at: Long, uniqueId: Option[String], forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = new NothingStore(at)

  private final class NothingStore(override val version: Long) extends StateStore {
    private var done = false
    override def id: StateStoreId = NothingProvider.this.id
    override def get(key: UnsafeRow, family: String): UnsafeRow = rows.get(key)
    override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit =
      rows.put(key.copy(), value.copy()): Unit
    override def remove(key: UnsafeRow, family: String): Unit = rows.remove(key): Unit
    override def commit(): Long = {
      done = true
      if (conf.commitValidationEnabled)
        StateStore.reportCommitToCoordinator(version + 1, id, hadoopConf)
      version + 1
    }
    override def abort(): Unit = ()
    override def release(): Unit = ()
    override def hasCommitted: Boolean = done
    override def metrics: StateStoreMetrics = StateStoreMetrics(rows.size.toLong, 0L, Map.empty)
    override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
      StateStoreCheckpointInfo(id.partitionId, version + 1, None, None)
    override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

    private def no[T]: T = throw new UnsupportedOperationException("the benchmark needs no more")
    override def iterator(family: String): StateStoreIterator[UnsafeRowPair] = no
    override def iteratorWithMultiValues(family: String): StateStoreIterator[UnsafeRowPair] = no
    override def prefixScan(prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] =
      no
    override def prefixScanWithMultiValues(
        prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] = no
    override def valuesIterator(key: UnsafeRow, family: String): Iterator[UnsafeRow] = no
    override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = no
    override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit = no
    override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = no
    override def removeColFamilyIfExists(family: String): Boolean = no
    override def createColFamilyIfAbsent(family: String, keySchema: StructType,
        valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
        useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = no
  }
}
