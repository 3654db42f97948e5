package org.apache.spark.sql.millpond.observe

import scala.concurrent.ExecutionContext
import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEndpointRef, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.sql.millpond.base.Clock
import org.apache.spark.util.RpcUtils

/** Sends a report of this JVM to the driver every two seconds, over Spark's own RPC, and registers
  * its metrics with Spark's metrics system. Begins with the first store. A thread of its own does
  * it, which reads values and takes no lock of a store. */
object Reports extends Logging {
  private[observe] val Endpoint = "MillpondReports"
  private val IntervalMs = 2000L
  // A driver whose session has no extension takes no reports.
  private val TicksUntilNextLook = 15

  // of the application that has stores; another one in this JVM may have none
  @volatile private var wanted: SparkEnv = null
  private var env: SparkEnv = null
  private var driver: RpcEndpointRef = null
  private var ticks = 0
  @volatile private var answered: String => Unit = _ => ()
  private lazy val clock = Clock.every(IntervalMs, "millpond-reports")(tick())

  /** Begin, unless it has begun. A JVM without Spark has nobody to report to. */
  def start(): Unit = {
    val now = SparkEnv.get
    if (now != null) {
      wanted = now
      clock: Unit
    }
  }

  /** Whoever wants the driver's answers to this JVM's reports. `take` must return at once. */
  def onAnswer(take: String => Unit): Unit = answered = take

  // The one thread of the clock runs this; it must not end.
  private def tick(): Unit =
    try {
      val now = if (SparkEnv.get eq wanted) wanted else null
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
        if (driver != null)
          driver.ask[String](Report.now(env.executorId).text).foreach(answered)(
            ExecutionContext.parasitic)
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
  private var receiver: Receiver = null
  @volatile private var answer: String => String = _ => ""

  /** Whoever has something to tell an executor, as an answer to its report. */
  def answerWith(text: String => String): Unit = answer = text

  /** Called with each plan of a query whose state is Millpond's. The first of an application lets
    * executors report, and shows the tab *State*. */
  def start(context: SparkContext): Unit = synchronized {
    val now = SparkEnv.get
    if (now != null && (now ne env)) {
      env = now
      receiver = null
      try {
        val source = new ExecutorsSource
        val endpoint = new Receiver(now.rpcEnv, source, context)
        // before the first report adds to it
        now.metricsSystem.registerSource(source)
        now.rpcEnv.setupEndpoint(Reports.Endpoint, endpoint)
        receiver = endpoint
        context.addSparkListener(new SparkListener {
          override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
            endpoint.self.send(Gone(removed.executorId))
        })
        StateTab.attach(context)
        Reports.start()
      } catch {
        // to see less is no reason to fail a query
        case NonFatal(e) => logWarning(s"executors cannot report to this driver: ${e.getMessage}")
      }
    }
  }

  /** The last report of each executor that lives. */
  def latest: Seq[Report] = synchronized(if (receiver != null && (SparkEnv.get eq env)) receiver
  else null) match {
    case null => Nil
    case now => now.latest
  }

  /** A query has ended: what executors said last is kept for the history. */
  def queryEnded(): Unit = synchronized {
    if (receiver != null && (SparkEnv.get eq env)) receiver.self.send(Keep)
  }

  private final case class Gone(executor: String)
  private case object Keep

  /** Spark calls it from one thread at a time. */
  private final class Receiver(override val rpcEnv: RpcEnv, source: ExecutorsSource,
      context: SparkContext) extends ThreadSafeRpcEndpoint {
    private val kept = new KeptReports(context.listenerBus.post(_))

    override def receiveAndReply(call: RpcCallContext): PartialFunction[Any, Unit] = {
      case text: String =>
        val report = Report.parse(text)
        source.reported(report)
        kept.came(report.executor, text)
        call.reply(answer(report.executor))
    }

    override def receive: PartialFunction[Any, Unit] = {
      case Gone(executor) =>
        kept.gone(executor)
        source.removed(executor)
      case Keep => kept.keepAll()
    }

    def latest: Seq[Report] = kept.latest.map(Report.parse)
  }
}
