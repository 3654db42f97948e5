package org.apache.spark.sql.millpond

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.util.NextIterator

/** What the provider is a kind of. A new query gets the join state formats 3 and 4 of Spark 4.3 only if the class of its provider is assignable
  * to Spark's own, else format 2 without a word (docs/design/0003-join-formats.md). So Millpond's is, and uses nothing of it: whatever the
  * parent does is overridden here or in [[MillpondStateStoreProvider]] (`integration/test_joins.py` compares the two member by member). */
abstract class LineProvider extends RocksDBStateStoreProvider {
  /** One record a change of the column family in `[startVersion, endVersion]`: its kind, key, value (null if removed) and batch. */
  protected def changes(startVersion: Long, endVersion: Long, columnFamily: String,
      endId: Option[String]): NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]

  private[millpond] def conf: StateStoreConf

  override def getStateStoreChangeDataReader(startVersion: Long, endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStoreChangeDataReader = {
    val feed = changes(startVersion, endVersion,
      colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME), endVersionStateStoreCkptId)
    new LineChanges(feed, stateStoreId, startVersion, endVersion, conf)
  }

  // ---- what belongs to the parent alone ------------------------------------------------------------------------------------------

  override protected def logName: String = getClass.getName
  override private[sql] def latestVersion: Long = notOurs("latestVersion")
  override private[sql] def getRocksDBStateStore(version: Long): RocksDBStateStore =
    notOurs("getRocksDBStateStore")
  override private[sql] lazy val rocksDB: RocksDB = notOurs[RocksDB]("rocksDB")

  private def notOurs[T](member: String): T = throw new IllegalStateException(
    s"$member is the RocksDB provider's own: Millpond has none of its RocksDB")
}

/** A feed of changes as the type that the parent's signature wants; the file access of that type is never begun. */
private final class LineChanges(feed: NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)],
    id: StateStoreId, start: Long, end: Long,
    conf: StateStoreConf) extends StateStoreChangeDataReader(id, null,
      new Path(id.checkpointRootLocation), start, end, null, conf, None) {
  override protected val changelogSuffix: String = "changelog"
  override def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) =
    if (feed.hasNext) feed.next() else { finished = true; null }
  override def close(): Unit = feed.closeIfNeeded()
}

/** What reading is beside the contract: nothing, in 4.3. */
private[millpond] trait LineReadStore extends ReadStateStore
