package org.apache.spark.sql.millpond.engine

import java.io.IOException
import java.nio.file.{Files, Path}
import java.util.concurrent.CountDownLatch

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
      awaited(trial, file)
      Files.delete(file)
    } finally Files.delete(folder)
  }

  /** The system has told a sync of an error. Who waits for its end hears of it, too. */
  private def awaited(trial: Trial, file: Path): Unit = {
    trial.step("wait for a sync that has not said yet that it failed")
    val told, goOn = new CountDownLatch(1)
    val sync = new LogSync(file.toFile,
      _ => { told.countDown(); goOn.await(); throw new IOException("the disk lost it") })
    val syncing = new Thread(() => sync.sync())
    syncing.start()
    told.await()
    @volatile var heard = false
    val waiting = new Thread(() => { sync.await(); heard = sync.hasFailed })
    waiting.start()
    while (waiting.getState != Thread.State.WAITING && waiting.isAlive) Thread.onSpinWait()
    goOn.countDown()
    Seq(syncing, waiting).foreach(_.join())
    trial.check(heard, "nobody heard that the sync failed")
    sync.await()
  }
}
