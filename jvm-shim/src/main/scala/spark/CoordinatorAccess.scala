package org.apache.spark.sql.execution.streaming.state

/** Reaches what Spark shows to its own package alone. */
object CoordinatorAccess {
  def runId(hadoopConf: org.apache.hadoop.conf.Configuration): String =
    StateStoreProvider.getRunId(hadoopConf)

  /** The driver's coordinator: who has which store. */
  def onDriver(): StateStoreCoordinatorRef =
    StateStoreCoordinatorRef.forExecutor(org.apache.spark.SparkEnv.get)

  def snapshotUploaded(id: StateStoreProviderId, version: Long, timestampMs: Long): Unit =
    StateStoreProvider.coordinatorRef.foreach(_.snapshotUploaded(id, version, timestampMs))
}
