package org.apache.spark.sql.millpond.observe

import org.apache.spark.scheduler.{
  SparkListener, SparkListenerEvent, SparkListenerExecutorRemoved
}
import org.apache.spark.sql.millpond.base.Clock
import org.apache.spark.status.ElementTrackingStore
import org.apache.spark.status.KVUtils.KVIndexParam
import org.apache.spark.util.kvstore.KVStore

/** A report on the driver's listener bus. */
sealed trait ReportEvent extends SparkListenerEvent {
  def report: String
}

/** A report that goes to the event log too, from which a history server reads it. */
final case class StateReportEvent(report: String) extends ReportEvent

/** A report that the next one replaces: the event log would grow without end. */
final case class PassingReportEvent(report: String) extends ReportEvent {
  override protected[spark] def logEvent: Boolean = false
}

/** The last report of an executor, in the store that Spark's web pages read.
  *
  * @param cameMs when it came, by the clock of the JVM that stored it */
private[observe] final class StoredReport(@KVIndexParam val executor: String, val report: String,
    val cameMs: Long, val gone: Boolean)

/** Keeps the last report of each executor for the tab *State*, on a driver and on a history
  * server.
  *
  * @param passedMs this JVM's clock */
private[observe] final class ReportListener(
    store: ElementTrackingStore, passedMs: () => Long = () => Clock.passedMs)
    extends SparkListener {
  import ReportListener.MostGone
  // executors that are gone, the earliest first; only the bus's thread uses it
  private val gone = scala.collection.mutable.LinkedHashSet.empty[String]

  override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
    case e: ReportEvent =>
      val executor = Report.parse(e.report).executor
      if (executor.nonEmpty)
        store.write(new StoredReport(executor, e.report, passedMs(), gone.contains(executor)))
    case _ =>
  }

  override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit = {
    gone.add(event.executorId): Unit
    StoredReports.of(store, event.executorId).foreach(last =>
      store.write(new StoredReport(last.executor, last.report, last.cameMs, gone = true)))
    if (gone.size > MostGone) {
      // its id stays among the gone ones of Spark, which never gives it again
      val first = gone.head
      gone.remove(first)
      if (StoredReports.of(store, first).isDefined) store.delete(classOf[StoredReport], first)
    }
  }
}

private object ReportListener {
  private val MostGone = 100
}

private[observe] object StoredReports {
  def of(store: KVStore, executor: String): Option[StoredReport] =
    try Some(store.read(classOf[StoredReport], executor))
    catch { case _: NoSuchElementException => None }

  def all(store: KVStore): Seq[StoredReport] = {
    val found = store.view(classOf[StoredReport]).closeableIterator()
    try {
      val out = Seq.newBuilder[StoredReport]
      while (found.hasNext) out += found.next()
      out.result()
    } finally found.close()
  }
}
