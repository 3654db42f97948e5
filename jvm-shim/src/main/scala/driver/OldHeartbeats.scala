package org.apache.spark.sql.millpond.driver

import java.io.FileNotFoundException
import java.util.concurrent.{Executors, TimeUnit}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.Daemons

/** Deletes the heartbeats that killed drivers have left beside that of a run. Every command lists
  * them all, and reads those that are younger than a day.
  *
  * A heartbeat goes if it is a week older than the run's own, both by the clock of the storage, and
  * if nobody renews it while this run renews its own. So clocks may differ, or jump: a run that
  * lives writes its file several times meanwhile. A driver that stood still for a week, and goes on
  * in the moment of the deletion, writes its file again with its next beat. Until then the run's
  * own heartbeat, which is fresh, shows that the query runs.
  *
  * @param own the run's heartbeat, which is there.
  * @param isRunning whether the run has not ended.
  */
private final class OldHeartbeats(own: Path, conf: Configuration, isRunning: () => Boolean) {
  import OldHeartbeats._
  private val fs = own.getFileSystem(conf)
  private val found = mutable.ArrayBuffer.empty[FileStatus]
  private var foundMs = Long.MaxValue // the time of the run's own heartbeat then

  /** Note some of those that look old. */
  def find(): Unit = {
    foundMs = timeMs(own)
    val files = fs.listStatusIterator(own.getParent)
    while (found.size < MostAtOnce && files.hasNext) {
      val file = files.next()
      if (OfRun.matches(file.getPath.getName) && isOld(file)) found += file
    }
  }

  /** Delete those of them that are still the same. To be called after some beats of the run. */
  def delete(): Unit =
    if (found.nonEmpty && isRunning() && timeMs(own) > foundMs)
      found.iterator.takeWhile(_ => isRunning()).filter(isSame).foreach { file =>
        fs.delete(file.getPath, false): Unit
      }

  private def isOld(file: FileStatus): Boolean = foundMs - file.getModificationTime > MostAgeMs

  private def isSame(file: FileStatus): Boolean =
    try timeMs(file.getPath) == file.getModificationTime
    catch { case _: FileNotFoundException => false } // another run was faster

  private def timeMs(file: Path): Long = fs.getFileStatus(file).getModificationTime
}

private object OldHeartbeats extends Logging {
  // Commands take no heartbeat that is older than a day for that of a running query.
  val MostAgeMs: Long = TimeUnit.DAYS.toMillis(7)
  // of a run: it leaves one itself at most
  val MostAtOnce = 100
  // not the files of commands: the next command deletes those
  private val OfRun = """[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json""".r

  /** Delete old heartbeats once, on a thread of its own: the run's next beat must not wait for it.
    *
    * @param watchMs how long others have to renew theirs.
    */
  def start(own: Path, conf: Configuration, watchMs: Long)(isRunning: () => Boolean): Unit = {
    val pool =
      Executors.newSingleThreadScheduledExecutor(Daemons.named("millpond-old-heartbeats"))
    lazy val old = new OldHeartbeats(own, conf, isRunning) // made there: it may wait
    pool.execute(() => quietly(own)(old.find()))
    pool.schedule((() => quietly(own)(old.delete())): Runnable, watchMs,
      TimeUnit.MILLISECONDS): Unit
    pool.shutdown() // it ends when both are done
  }

  private def quietly(own: Path)(work: => Unit): Unit =
    try work
    catch {
      case NonFatal(e) => logWarning(s"old heartbeats in ${own.getParent} stay: ${e.getMessage}")
    }
}
