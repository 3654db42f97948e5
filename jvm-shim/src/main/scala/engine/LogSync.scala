package org.apache.spark.sql.millpond.engine

import java.io.{File, IOException}
import java.nio.channels.FileChannel
import java.nio.file.StandardOpenOption.WRITE

import org.apache.spark.sql.millpond.base.{Daemons, Seams}

/** Brings the changelog of a running batch to the disk bit by bit, on a thread of its own, so that
  * the commit need not wait for all of it. */
private[engine] final class LogSync(file: File, force: FileChannel => Unit = _.force(false)) {
  import LogSync._

  private var begunAt = 0L // size of the file when the last sync began
  @volatile private var failure = false
  private var isUnderWay = false // guarded by this

  /** The system tells one reader of an error that it lost data. A later sync would succeed. */
  def hasFailed: Boolean = failure

  /** Wait for a sync that may have been told such an error, and has not said so yet. Those that
    * begin later lack nothing: callers have synced the file themselves. */
  def await(): Unit = synchronized { while (isUnderWay) wait() }

  /** The file has so many bytes now. Callers hold the engine's monitor. */
  def written(bytes: Long): Unit =
    if (bytes - begunAt >= StepBytes && Seams.director == null) {
      begunAt = bytes
      pool.execute(() => sync())
    }

  private[engine] def sync(): Unit = {
    synchronized { isUnderWay = true }
    try
      opened().foreach { channel =>
        try
          try force(channel)
          finally channel.close()
        catch { case _: IOException => failure = true }
      }
    finally synchronized { isUnderWay = false; notifyAll() }
  }

  /** A channel of its own: to close one waits for those who use it. None: the batch has ended, or
    * too many files are open. The agent syncs the file in any case. */
  private def opened(): Option[FileChannel] =
    try Some(FileChannel.open(file.toPath, WRITE))
    catch { case _: IOException => None }
}

private object LogSync {
  private val StepBytes = 256L << 10

  private lazy val pool = Daemons.one("millpond-log-sync")
}
