package org.apache.spark.sql.millpond.observe

import java.util.concurrent.{Executors, ThreadFactory, TimeUnit}

import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcEndpointRef, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.util.RpcUtils

/** Sends a report of this JVM to the driver every two seconds, over Spark's own RPC, and registers
  * its metrics with Spark's metrics system. Begins with the first store. A thread of its own does
  * it, which reads values and takes no lock of a store. */
object Reports extends Logging {
  private[observe] val Endpoint = "MillpondReports"
  private val IntervalMs = 2000L
  // A driver whose session has no extension takes no reports.
  private val TicksUntilNextLook = 15

  private var env: SparkEnv = null
  private var driver: RpcEndpointRef = null
  private var ticks = 0
  private lazy val clock = {
    val pool = Executors.newSingleThreadScheduledExecutor(new ThreadFactory {
      def newThread(work: Runnable): Thread = {
        val t = new Thread(work, "millpond-reports")
        t.setDaemon(true)
        t
      }
    })
    pool.scheduleWithFixedDelay(() => tick(), 0, IntervalMs, TimeUnit.MILLISECONDS): Unit
    pool
  }

  /** Begin, unless it has begun. A JVM without Spark has nobody to report to. */
  def start(): Unit = if (SparkEnv.get != null) clock: Unit

  // The one thread of the clock runs this; it must not end.
  private def tick(): Unit =
    try {
      val now = SparkEnv.get
      if (now ne env) {
        env = now
        driver = null
        ticks = 0
        if (now != null) now.metricsSystem.registerSource(new JvmSource)
      }
      if (env != null) {
        if (driver == null && ticks % TicksUntilNextLook == 0)
          driver = RpcUtils.makeDriverRef(Endpoint, env.conf, env.rpcEnv)
        ticks += 1
        if (driver != null) driver.send(Report.now(env.executorId).text)
      }
    } catch {
      case NonFatal(e) =>
        driver = null
        ticks += 1
        logDebug(s"no report was sent to the driver: ${e.getMessage}")
    }
}

/** Receives the executors' reports on the driver. */
object DriverReports extends Logging {
  private var env: SparkEnv = null

  /** Called when a query with Millpond's extension starts. */
  def start(context: SparkContext): Unit = synchronized {
    val now = SparkEnv.get
    if (now != null && (now ne env)) {
      env = now
      try {
        val source = new ExecutorsSource
        val endpoint = new Receiver(now.rpcEnv, source)
        now.rpcEnv.setupEndpoint(Reports.Endpoint, endpoint)
        now.metricsSystem.registerSource(source)
        context.addSparkListener(new SparkListener {
          override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
            endpoint.self.send(Gone(removed.executorId))
        })
        Reports.start()
      } catch {
        // metrics are no reason to fail a query
        case NonFatal(e) => logWarning(s"executors cannot report to this driver: ${e.getMessage}")
      }
    }
  }

  private final case class Gone(executor: String)

  private final class Receiver(override val rpcEnv: RpcEnv, source: ExecutorsSource)
      extends ThreadSafeRpcEndpoint {
    override def receive: PartialFunction[Any, Unit] = {
      case text: String => source.reported(Report.parse(text))
      case Gone(executor) => source.removed(executor)
    }
  }
}
