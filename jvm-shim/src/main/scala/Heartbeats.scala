package org.apache.spark.sql.millpond

import java.net.InetAddress
import java.nio.charset.StandardCharsets
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, Executors, ThreadFactory, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** Says in the checkpoint of every running query with Millpond's state that it runs: a file `millpond/running/<run id>.json`, written anew every
  * few seconds and deleted at the end of the query. Commands that change a checkpoint look at it. On the driver. */
private object Heartbeats extends Logging {
  private val IntervalMs = 5000L
  private val running = new ConcurrentHashMap[UUID, Heartbeat]

  private lazy val clock = {
    val pool = Executors.newSingleThreadScheduledExecutor(new ThreadFactory {
      def newThread(work: Runnable): Thread = {
        val t = new Thread(work, "millpond-heartbeats"); t.setDaemon(true); t
      }
    })
    pool.scheduleAtFixedRate(() => running.values.asScala.foreach(_.beat()), IntervalMs, IntervalMs,
      TimeUnit.MILLISECONDS)
    pool
  }

  /** Before the query reads its logs. */
  def started(query: StreamExecution, run: UUID): Unit = {
    clock
    val beat = new Heartbeat(new Path(query.resolvedCheckpointRoot), run,
      query.sparkSession.sessionState.newHadoopConf())
    running.put(run, beat)
    beat.beat()
  }

  def ended(run: UUID): Unit = { val beat = running.remove(run); if (beat != null) beat.stop() }

  private final class Heartbeat(root: Path, run: UUID, conf: org.apache.hadoop.conf.Configuration) {
    private val file = new Path(root, s"millpond/running/$run.json")
    private val text =
      Json.obj().put("run_id", run.toString).put("host", InetAddress.getLocalHost.getHostName).put(
        "pid", ProcessHandle.current.pid)
        .put("interval_ms", IntervalMs)
    private var stopped = false

    def beat(): Unit = synchronized {
      // the folder is made by the first store: a query of another provider gets none
      if (!stopped) quietly {
        val fs = file.getFileSystem(conf)
        if (fs.exists(new Path(root, "millpond"))) {
          val out = fs.create(file, true)
          try out.write(Json.text(text.put("updated_ms", System.currentTimeMillis)).getBytes(
                StandardCharsets.UTF_8))
          finally out.close()
        }
      }
    }

    def stop(): Unit = synchronized {
      stopped = true
      quietly { file.getFileSystem(conf).delete(file, false); () }
    }

    /** A heartbeat that cannot be written must not end the query; the storage's own troubles show at the next commit. */
    private def quietly(work: => Unit): Unit =
      try work
      catch {
        case NonFatal(e) => logWarning(s"the heartbeat $file cannot be written: ${e.getMessage}")
      }
  }
}
