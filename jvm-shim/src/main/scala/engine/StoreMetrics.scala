package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.execution.streaming.state.{
  StateStoreCustomMetric, StateStoreCustomSumMetric, StateStoreCustomTimingMetric,
  StateStoreSnapshotLastUploadInstanceMetric
}
import org.apache.spark.sql.millpond.base.SparkCompatibility
import org.apache.spark.sql.millpond.observe.Counters

/** Counters of one store. The next batch reports background work, once. Callers hold the engine's
  * monitor, or are the one thread that takes snapshots. */
final class StoreMetrics {
  /** Point reads, whatever answered them; `diskReads` are those that memory could not answer. */
  var lookups = 0L
  var diskReads = 0L
  var restoreBytes = 0L
  var shrinks = 0L
  var spills = 0L
  var evictedBytes = 0L
  private var changelogBytes = 0L
  private var changelogNs = 0L
  private var changelogAheadNs = 0L
  private var expiredRows = 0L
  private var snapshotNewBytes = 0L
  private var snapshotReusedBytes = 0L
  private var snapshotNs = 0L
  private var snapshots = 0L
  private var restoreNs = 0L

  /** @param ns of the commit
    * @param expired rows that the batch ended */
  private[engine] def committed(log: WrittenChangelog, ns: Long, expired: Long): Unit =
    synchronized {
      changelogBytes += log.fileBytes
      changelogNs += ns
      changelogAheadNs += log.aheadNs
      expiredRows += expired
      Counters.expiredRows.add(expired)
    }
  def restored(ns: Long): Unit = {
    synchronized(restoreNs += ns)
    Counters.restores.increment()
  }
  def snapshotTaken(newBytes: Long, reusedBytes: Long, ns: Long): Unit = synchronized {
    snapshotNewBytes += newBytes
    snapshotReusedBytes += reusedBytes
    snapshotNs += ns
    snapshots += 1
    Counters.snapshots.increment()
  }

  // of all batches since the store was opened; any thread may read them
  @volatile private var theMemoryBytes = 0L
  @volatile private var theLookups = 0L
  @volatile private var theDiskReads = 0L
  @volatile private var theDiskBytes = 0L
  def memoryBytes: Long = theMemoryBytes
  def diskBytes: Long = theDiskBytes
  def allLookups: Long = theLookups
  def allDiskReads: Long = theDiskReads

  /** Let the executor's counters follow, at the end of a batch or of the store. */
  private def add(): Unit = {
    theLookups += lookups
    theDiskReads += diskReads
    Counters.lookups.add(lookups)
    Counters.diskReads.add(diskReads)
    Counters.evictedBytes.add(evictedBytes)
    Counters.shrinks.add(shrinks)
    Counters.spills.add(spills)
    lookups = 0L
    diskReads = 0L
    shrinks = 0L
    spills = 0L
    evictedBytes = 0L
  }

  /** The store gave up all that it has: no batch takes the rest. */
  private[engine] def emptied(): Unit = synchronized {
    add()
    theMemoryBytes = 0L
    theDiskBytes = 0L
  }

  /** All counters since the last time, by metric. */
  def take(memoryBytes: Long, diskBytes: Long, agentNs: Long,
      storage: Map[StateStoreCustomMetric, Long])
      : Map[StateStoreCustomMetric, Long] = synchronized {
    val out = Map[StateStoreCustomMetric, Long](
      StoreMetrics.ChangelogBytes -> changelogBytes,
      StoreMetrics.ChangelogMs -> changelogNs / 1000000L,
      StoreMetrics.ChangelogAheadMs -> changelogAheadNs / 1000000L,
      StoreMetrics.SnapshotNewBytes -> snapshotNewBytes,
      StoreMetrics.SnapshotReusedBytes -> snapshotReusedBytes,
      StoreMetrics.SnapshotMs -> snapshotNs / 1000000L,
      StoreMetrics.SnapshotCount -> snapshots,
      StoreMetrics.RestoreMs -> restoreNs / 1000000L,
      StoreMetrics.RestoreBytes -> restoreBytes,
      StoreMetrics.AgentCallMs -> agentNs / 1000000L,
      StoreMetrics.DiskReads -> diskReads,
      StoreMetrics.Shrinks -> shrinks,
      StoreMetrics.Spills -> spills,
      StoreMetrics.EvictedBytes -> evictedBytes,
      StoreMetrics.MemoryBytes -> memoryBytes,
      StoreMetrics.DiskBytes -> diskBytes,
      StoreMetrics.ExpiredRows -> expiredRows
    ) ++ storage
    expiredRows = 0L
    changelogBytes = 0L
    changelogNs %= 1000000L // a rest below a millisecond counts with the next batch
    changelogAheadNs %= 1000000L
    snapshotNewBytes = 0L
    snapshotReusedBytes = 0L
    snapshotNs %= 1000000L
    snapshots = 0L
    restoreNs = 0L
    restoreBytes = 0L
    theMemoryBytes = memoryBytes
    theDiskBytes = diskBytes
    add()
    out
  }
}

/** Names are documented (docs/reference/metrics.md) and stay. */
object StoreMetrics {
  val ChangelogBytes: StateStoreCustomMetric = SparkCompatibility.sizeMetric(
    "millpondChangelogBytes", "Millpond: bytes of changelogs committed")
  val ChangelogMs: StateStoreCustomMetric = StateStoreCustomTimingMetric("millpondChangelogMs",
    "Millpond: time of commits to write and publish changelogs")
  val ChangelogAheadMs: StateStoreCustomMetric = StateStoreCustomTimingMetric(
    "millpondChangelogAheadMs", "Millpond: time to write changelogs while batches run")
  val SnapshotNewBytes: StateStoreCustomMetric = SparkCompatibility.sizeMetric(
    "millpondSnapshotNewBytes", "Millpond: bytes of SSTs that snapshots uploaded")
  val SnapshotReusedBytes: StateStoreCustomMetric = SparkCompatibility.sizeMetric(
    "millpondSnapshotReusedBytes", "Millpond: bytes of SSTs that snapshots reused")
  val SnapshotMs: StateStoreCustomMetric = StateStoreCustomTimingMetric("millpondSnapshotMs",
    "Millpond: time to publish snapshots, in the background")
  val SnapshotCount: StateStoreCustomMetric =
    StateStoreCustomSumMetric("millpondSnapshotCount", "Millpond: snapshots published")
  val RestoreMs: StateStoreCustomMetric =
    StateStoreCustomTimingMetric("millpondRestoreMs", "Millpond: time to restore stores")
  val RestoreBytes: StateStoreCustomMetric = SparkCompatibility.sizeMetric("millpondRestoreBytes",
    "Millpond: bytes of snapshots and changelogs restored")
  val AgentCallMs: StateStoreCustomMetric =
    StateStoreCustomTimingMetric("millpondAgentCallMs", "Millpond: time in calls to the agent")
  val DiskReads: StateStoreCustomMetric = StateStoreCustomSumMetric("millpondDiskReads",
    "Millpond: point reads that went to the disk tier")
  val Shrinks: StateStoreCustomMetric =
    StateStoreCustomSumMetric("millpondShrinks", "Millpond: times that a store gave memory back")
  val Spills: StateStoreCustomMetric = StateStoreCustomSumMetric("millpondSpills",
    "Millpond: times that a micro-batch outgrew memory and went to disk in part")
  val EvictedBytes: StateStoreCustomMetric = SparkCompatibility.sizeMetric("millpondEvictedBytes",
    "Millpond: bytes of rows dropped from memory that the disk tier has")
  val MemoryBytes: StateStoreCustomMetric =
    SparkCompatibility.gaugeMetric("millpondMemoryBytes", "Millpond: bytes of the memory tier")
  val DiskBytes: StateStoreCustomMetric =
    SparkCompatibility.gaugeMetric("millpondDiskBytes", "Millpond: bytes of the disk tier")
  val ExpiredRows: StateStoreCustomMetric = StateStoreCustomSumMetric("millpondExpiredRows",
    "Millpond: rows that ended by their time to live")
  /** By their names in the agent's answers. */
  val storage: Map[String, StateStoreCustomMetric] = Map(
    "put_requests" -> StateStoreCustomSumMetric("millpondStoragePutRequests",
      "Millpond: requests to the storage that write"),
    "get_requests" -> StateStoreCustomSumMetric("millpondStorageGetRequests",
      "Millpond: requests to the storage that read"),
    "list_requests" -> StateStoreCustomSumMetric("millpondStorageListRequests",
      "Millpond: requests to the storage that list"),
    "delete_requests" -> StateStoreCustomSumMetric("millpondStorageDeleteRequests",
      "Millpond: requests to the storage that delete"),
    "sent_bytes" -> SparkCompatibility.sizeMetric("millpondStorageSentBytes",
      "Millpond: bytes sent to the storage"),
    "received_bytes" -> SparkCompatibility.sizeMetric("millpondStorageReceivedBytes",
      "Millpond: bytes received from the storage")
  )
  val LastSnapshot: StateStoreSnapshotLastUploadInstanceMetric =
    StateStoreSnapshotLastUploadInstanceMetric()

  val all: Seq[StateStoreCustomMetric] = Seq(
    ChangelogBytes,
    ChangelogMs,
    ChangelogAheadMs,
    SnapshotNewBytes,
    SnapshotReusedBytes,
    SnapshotMs,
    SnapshotCount,
    RestoreMs,
    RestoreBytes,
    AgentCallMs,
    DiskReads,
    Shrinks,
    Spills,
    EvictedBytes,
    MemoryBytes,
    DiskBytes,
    ExpiredRows
  ) ++ storage.values
}
