package org.apache.spark.sql.millpond.observe

import scala.collection.mutable

import org.apache.spark.SparkConf
import org.apache.spark.scheduler.SparkListenerExecutorRemoved
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.status.ElementTrackingStore
import org.apache.spark.util.kvstore.InMemoryStore

/** The clock of each executor may be hours ahead of the driver's or behind it, and an executor may
  * be silent for long. All ages are as if there were one clock. */
object ReportAgesPart extends Part {
  override val name = "report-ages"

  private val HourMs = 3600L * 1000L

  /** What is true of an executor: when it reported, and how old something was then. */
  private final case class Said(atPassedMs: Long, oldMs: Long, thenMs: Long)

  override def run(trial: Trial): Unit = {
    import trial.{equal, random}
    var passedMs = random.nextLong(HourMs)
    val beganMs = System.currentTimeMillis - passedMs
    val store = new ElementTrackingStore(new InMemoryStore, new SparkConf(false))
    val listener = new ReportListener(store, () => passedMs)
    val source = new ExecutorsSource(() => passedMs)
    val aheadMs = Seq.fill(random.between(1, 4))(random.between(-48L * HourMs, 48L * HourMs))
    trial.step(s"clocks that are ahead by $aheadMs ms")
    val said = mutable.HashMap.empty[String, Said]
    try {
      (1 to random.between(5, 50)).foreach { _ =>
        passedMs += random.nextLong(HourMs)
        val number = random.nextInt(aheadMs.size)
        val executor = number.toString
        val (atMs, oldMs) = (beganMs + passedMs + aheadMs(number), random.nextLong(HourMs))
        said(executor) = Said(passedMs, oldMs, atMs - oldMs)
        val text = s"""{"executor": "$executor", "at_ms": $atMs}"""
        trial.step(s"after $passedMs ms: $text")
        listener.onOtherEvent(PassingReportEvent(text))
        source.reported(Report.parse(text))
        passedMs += random.nextLong(HourMs)
        said.foreach { case (id, s) =>
          val sinceMs = passedMs - s.atPassedMs
          val age = source.metricRegistry.getGauges.get(s"$id.report_age_seconds").getValue
          equal(age, sinceMs / 1000.0, s"the metric of executor $id")
          val came = CameReport.of(StoredReports.of(store, id).get, isLive = true, passedMs)
          equal(came.agoMs(came.report.atMs), sinceMs, s"the age of executor $id's report")
          equal(came.agoMs(s.thenMs), s.oldMs + sinceMs, s"what executor $id told of")
          val past = CameReport.of(StoredReports.of(store, id).get, isLive = false, passedMs)
          equal(past.agoMs(s.thenMs), s.oldMs, s"what executor $id told of, from the history")
        }
      }
      said.foreach { case (id, s) =>
        listener.onExecutorRemoved(SparkListenerExecutorRemoved(0L, id, "as the test wants it"))
        val gone = StoredReports.of(store, id).get
        equal((gone.gone, gone.cameMs), (true, s.atPassedMs), s"executor $id that is gone")
        equal(CameReport.of(gone, isLive = true, passedMs).agoMs(s.thenMs), s.oldMs, "its age")
      }
    } finally store.close()
  }
}
