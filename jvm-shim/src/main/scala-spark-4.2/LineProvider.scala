package org.apache.spark.sql.millpond

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.NextIterator

/** What the provider is a kind of. Spark 4.2 gives every provider the join state format that its user asks for. */
abstract class LineProvider extends StateStoreProvider with SupportsFineGrainedReplay with Logging {
  private[millpond] def conf: StateStoreConf

  /** One record a change of the column family in `[startVersion, endVersion]`: its kind, key, value (null if removed) and batch. */
  protected def changes(startVersion: Long, endVersion: Long, columnFamily: String,
      endId: Option[String]): NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String])
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    changes(startVersion, endVersion,
      colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME), endVersionStateStoreCkptId)

  // 4.3 calls these two by themselves, 4.2 knows only doMaintenance, which does both
  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit
}

/** What reading is beside the contract of 4.3: there, the state reader registers families on a read store. */
private[millpond] trait LineReadStore extends ReadStateStore {
  def registerColFamily(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit
}
