package org.apache.spark.sql.millpond.observe

import scala.collection.concurrent.TrieMap
import scala.collection.mutable

import org.apache.spark.sql.millpond.base.Clock

/** The last report of each executor. One of ten minutes goes to the event log, and the last one of
  * an executor that is gone. Spark calls it from one thread at a time; `latest` is for all threads.
  *
  * @param post takes the events
  * @param passedMs this JVM's clock. What a report says of its time is no measure: the clocks of
  * two machines differ */
private[observe] final class KeptReports(
    post: ReportEvent => Unit, passedMs: () => Long = () => Clock.passedMs) {
  import KeptReports._

  // by executor: the last report, and when one went to the event log
  private val last = TrieMap.empty[String, String]
  private val keptMs = mutable.HashMap.empty[String, Long]

  def came(executor: String, text: String): Unit = {
    last(executor) = text
    if (keptMs.get(executor).forall(passedMs() - _ >= EveryMs)) keep(executor)
    else post(PassingReportEvent(text))
  }

  def gone(executor: String): Unit = {
    keep(executor)
    last.remove(executor): Unit
  }

  def keepAll(): Unit = last.keys.toSeq.foreach(keep)

  /** Of each executor that lives. */
  def latest: Seq[String] = last.values.toSeq

  private def keep(executor: String): Unit = last.get(executor).foreach { text =>
    keptMs(executor) = passedMs()
    post(StateReportEvent(text))
  }
}

private[observe] object KeptReports {
  // A report of two hundred stores has 60 KB: the event log grows by 400 KB an hour.
  private val EveryMs = 600000L
}
