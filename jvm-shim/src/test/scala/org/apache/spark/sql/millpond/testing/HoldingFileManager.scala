/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.nio.file.{Files, Paths}
import java.util.concurrent.CountDownLatch

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager, FileSystemBasedCheckpointFileManager
}

/** Never writes the file `millpond.test.hold` of a Spark checkpoint, as in `commits/2`: its writer
  * waits to be killed. The file `millpond.test.held` says that it waits.
  */
class HoldingFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def createAtomic(
      path: Path,
      overwriteIfPossible: Boolean
  ): CheckpointFileManager.CancellableFSDataOutputStream = {
    val name = s"${path.getParent.getName}/${path.getName}"
    if (name == conf.get("millpond.test.hold")) {
      Files.createFile(Paths.get(conf.get("millpond.test.held")))
      new CountDownLatch(1).await()
    }
    super.createAtomic(path, overwriteIfPossible)
  }
}
