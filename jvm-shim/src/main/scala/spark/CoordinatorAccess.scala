package org.apache.spark.sql.execution.streaming.state

/** What Spark keeps to its own package. */
object CoordinatorAccess {
  def runId(hadoopConf: org.apache.hadoop.conf.Configuration): String =
    StateStoreProvider.getRunId(hadoopConf)

  def snapshotUploaded(id: StateStoreProviderId, version: Long, timestampMs: Long): Unit =
    StateStoreProvider.coordinatorRef.foreach(_.snapshotUploaded(id, version, timestampMs))
}
