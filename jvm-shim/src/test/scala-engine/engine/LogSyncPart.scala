package org.apache.spark.sql.millpond.engine

import java.nio.file.Files

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Only a sync that fails says that the disk lost something. A file that cannot be opened has lost
  * nothing: the batch may have ended, or the executor may have too many open files. */
object LogSyncPart extends Part {
  override val name = "log-sync"

  override def run(trial: Trial): Unit = {
    val folder = Files.createTempDirectory("millpond-log-sync")
    try {
      val file = folder.resolve("file")
      Files.write(file, new Array[Byte](trial.random.nextInt(1000))): Unit
      Seq(file -> "a file", folder.resolve("gone") -> "no file", folder -> "no file to open")
        .foreach { case (path, what) =>
          trial.step(s"sync $what")
          val sync = new LogSync(path.toFile)
          sync.sync()
          trial.check(!sync.hasFailed, s"the sync of $what has failed")
        }
      Files.delete(file)
    } finally Files.delete(folder)
  }
}
