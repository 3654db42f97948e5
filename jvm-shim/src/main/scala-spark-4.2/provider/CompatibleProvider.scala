package org.apache.spark.sql.millpond.provider

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.millpond.base.BuildInfo
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.NextIterator

/** Comes before Spark's trait, because that of 4.3 makes fields which these classes do not have: an
  * AbstractMethodError would not say that this jar is for 4.2. */
private[provider] abstract class Checked { BuildInfo.check() }

/** What the provider is a kind of. Spark 4.2 gives every provider the join state format that
  * its user asks for. */
private[provider] abstract class CompatibleProvider extends Checked with StateStoreProvider
    with SupportsFineGrainedReplay with Logging {
  private[provider] def conf: StateStoreConf

  /** The changes of the column family in `[startVersion, endVersion]`. Each is a record: its kind,
    * key, value (null if removed) and batch. */
  protected def changes(startVersion: Long, endVersion: Long, columnFamily: String,
      endId: Option[String]): NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String], endVersionStateStoreCkptId: Option[String])
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    changes(startVersion, endVersion,
      colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME), endVersionStateStoreCkptId)

  // 4.3 calls these two by themselves, 4.2 knows only doMaintenance, which does both
  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit
}

/** What a read store offers beside the contract of 4.3, whose state reader registers
  * families on it. */
private[provider] trait CompatibleReadStore extends ReadStateStore {
  def registerColFamily(colFamilyName: String, keySchema: StructType, valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec, useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit
}
