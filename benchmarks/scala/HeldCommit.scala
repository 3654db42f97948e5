// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.util.concurrent.CountDownLatch

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager, FileContextBasedCheckpointFileManager
}

/** Spark's own files of a Spark checkpoint, but for the commit of the batch
  * `millpond.bench.heldBatch`: its writer waits to be killed. So this batch cannot end before, even
  * if it takes less than who kills the process expects.
  */
final class HeldCommit(root: Path, conf: Configuration)
    extends FileContextBasedCheckpointFileManager(root, conf) {
  override def createAtomic(
      path: Path,
      overwriteIfPossible: Boolean
  ): CheckpointFileManager.CancellableFSDataOutputStream = {
    val isCommit = path.getParent.getName == "commits"
    if (isCommit && path.getName == conf.get("millpond.bench.heldBatch"))
      new CountDownLatch(1).await()
    super.createAtomic(path, overwriteIfPossible)
  }
}
