package org.apache.spark.sql.millpond.driver

import java.io.IOException
import java.nio.file.{Files, Paths}
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.millpond.base.{Clock, Host, Json}

/** Shows in the Spark checkpoint that a query with Millpond's state runs. It writes
  * `millpond/running/<run id>.json` every few seconds and deletes it at the end of the query.
  * Commands that change a Spark checkpoint look at it. Runs on the driver. */
private object Heartbeats extends Logging {
  private val IntervalMs = 5000L
  private val MissedBeats = 3 // after so many a heartbeat counts as dead, if no other comes
  private val running = new ConcurrentHashMap[UUID, Heartbeat]

  /** Called before the query reads its logs.
    * @param late called with the query's first plan instead: its state is Millpond's. */
  def started(query: StreamExecution, run: UUID, late: Boolean = false): Unit = {
    EndedRuns.awaitedAtExit
    val beat = new Heartbeat(query, run, query.sparkSession.sessionState.newHadoopConf(), late)
    running.put(run, beat)
    beat.beat()
  }

  def ended(run: UUID): Unit = { val beat = running.remove(run); if (beat != null) beat.stop() }

  /** A pid means something only in its PID namespace, whose number means something only until the
    * kernel's next start. Containers may share a host's name. Linux alone has both: elsewhere they
    * are left out. */
  private lazy val whose: Map[String, String] = Seq(
    "boot_id" -> (() => Files.readString(Paths.get("/proc/sys/kernel/random/boot_id")).trim),
    "pid_namespace" -> (() => Files.readSymbolicLink(Paths.get("/proc/self/ns/pid")).toString)
  ).flatMap { case (name, read) =>
    try Some(name -> read())
    catch {
      case e: IOException => logInfo(s"heartbeats have no $name, which cannot be read: $e"); None
    }
  }.toMap

  private final class Heartbeat(query: StreamExecution, run: UUID, conf: Configuration,
      ours: Boolean) {
    private val root = new Path(query.resolvedCheckpointRoot)
    private val file = CheckpointPaths.running(root, run)
    private val text = Json.obj().put("run_id", run.toString)
      .put("host", Host.name).put("pid", ProcessHandle.current.pid)
      .put("interval_ms", IntervalMs)
    whose.foreach { case (name, value) => text.put(name, value) }
    @volatile private var stopped = false
    private var sweeps = true // until the first heartbeat is written
    private var endedBeats = 0 // the clock's thread alone counts
    // Of its own: where the storage of one query fails or hangs, the others must not look dead.
    private val clock = Clock.every(IntervalMs, s"millpond-heartbeat-$run", IntervalMs) {
      if (wasLost()) EndedRuns.ended(run) else beat()
    }

    /** Whether the query has ended for a whole interval: the news comes a moment after the end.
      * Then no listener tells of it: the job removed all listeners, or Spark dropped the event from
      * a full queue. Whoever looks at heartbeats must not take the query for a running one. While
      * it is being stopped it is not active, and its batch may go on for long. */
    private def wasLost(): Boolean = {
      val runs = query.isActive || query.queryExecutionThread.isAlive
      endedBeats = if (runs) 0 else endedBeats + 1
      endedBeats > 1
    }

    def beat(): Unit = synchronized {
      // the first store makes the folder: a query of another provider gets none
      if (!stopped) quietly {
        val fs = file.getFileSystem(conf)
        if (ours || fs.exists(CheckpointPaths.millpond(root))) {
          val now = text.put("updated_ms", System.currentTimeMillis)
          LogFiles.overwrite(file, Json.bytes(now), conf)
          if (sweeps) {
            sweeps = false
            OldHeartbeats.start(file, conf, MissedBeats * IntervalMs)(() => !stopped)
          }
        }
      }
    }

    def stop(): Unit = {
      clock.shutdown()
      synchronized {
        stopped = true
        quietly { file.getFileSystem(conf).delete(file, false); () }
      }
    }

    /** A failed heartbeat must not end the query: if storage is in trouble, the
      * next commit shows it. */
    private def quietly(work: => Unit): Unit =
      try work
      catch {
        case NonFatal(e) => logWarning(s"the heartbeat $file cannot be written: ${e.getMessage}")
      }
  }
}
