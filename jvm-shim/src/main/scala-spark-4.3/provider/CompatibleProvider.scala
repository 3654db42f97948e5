package org.apache.spark.sql.millpond.provider

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.util.NextIterator

/** What the provider is a kind of. A new query gets the join state formats 3 and 4 of Spark 4.3
  * only if the class of its provider is assignable to Spark's own, else format 2 without a word
  * (docs/design/0003-join-formats.md). So Millpond's is, and uses nothing of it: [[StoreProvider]]
  * and this class override every member of the parent (`integration/test_joins.py` compares the
  * two member by member). */
private[provider] abstract class CompatibleProvider extends RocksDBStateStoreProvider {
  /** The changes of the column family in `[startVersion, endVersion]`. Each is a record: its kind,
    * key, value (null if removed) and batch. */
  protected def changes(startVersion: Long, endVersion: Long, columnFamily: String,
      endId: Option[String]): NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]

  private[provider] def conf: StateStoreConf

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String], endVersionStateStoreCkptId: Option[String])
      : StateStoreChangeDataReader = {
    val feed = changes(startVersion, endVersion,
      colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME), endVersionStateStoreCkptId)
    new CompatibleChanges(feed, stateStoreId, startVersion, endVersion, conf)
  }

  // ---- what belongs to the parent alone ---------------------------------------------------------

  override protected def logName: String = getClass.getName
  override private[sql] def latestVersion: Long = notOurs("latestVersion")
  override private[sql] def getRocksDBStateStore(version: Long): RocksDBStateStore =
    notOurs("getRocksDBStateStore")
  override private[sql] lazy val rocksDB: RocksDB = notOurs[RocksDB]("rocksDB")

  private def notOurs[T](member: String): T = throw new IllegalStateException(
    s"$member is the RocksDB provider's own: Millpond has none of its RocksDB")
}

/** A feed of changes, in the type that the parent's signature wants. It never opens
  * that type's files. */
private final class CompatibleChanges(
    feed: NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)], id: StateStoreId,
    start: Long, end: Long, conf: StateStoreConf) extends StateStoreChangeDataReader(id, null,
      new Path(id.checkpointRootLocation), start, end, null, conf, None) {
  override protected val changelogSuffix: String = "changelog"
  override def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) =
    if (feed.hasNext) feed.next() else { finished = true; null }
  override def close(): Unit = feed.closeIfNeeded()
}

/** What a read store offers beside the contract: nothing, in 4.3. */
private[provider] trait CompatibleReadStore extends ReadStateStore
