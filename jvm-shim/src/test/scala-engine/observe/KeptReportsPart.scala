package org.apache.spark.sql.millpond.observe

import scala.collection.mutable

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Executors report every two seconds, each by its own clock, which may be hours ahead of the
  * driver's or behind it. The event log gets one report of ten minutes of each. */
object KeptReportsPart extends Part {
  override val name = "kept-reports"

  private val TickMs = 2000L
  private val HourMs = 3600L * 1000L

  override def run(trial: Trial): Unit = {
    import trial.{chance, equal, random}
    var passedMs = random.nextLong()
    val posted = mutable.ArrayBuffer.empty[ReportEvent]
    val kept = new KeptReports(posted.addOne(_): Unit, () => passedMs)
    val aheadMs = Seq.fill(random.between(1, 4))(random.between(-48L * HourMs, 48L * HourMs))
    trial.step(s"clocks that are ahead by $aheadMs ms")
    val last = mutable.HashMap.empty[String, String]
    val lastKept = mutable.HashMap.empty[String, Long]
    def check(expected: Iterable[ReportEvent], what: => String): Unit = {
      equal(posted.toSet, expected.toSet, what)
      equal(posted.size, expected.size, s"the number of events, $what")
      equal(kept.latest.toSet, last.values.toSet, "the last reports")
      posted.clear()
    }
    def keep(executor: String): Option[ReportEvent] = last.get(executor).map { text =>
      lastKept(executor) = passedMs
      StateReportEvent(text)
    }
    (1 to random.between(10, 1000)).foreach { tick =>
      passedMs += TickMs
      aheadMs.zipWithIndex.foreach { case (ahead, number) =>
        val executor = number.toString
        val atMs = System.currentTimeMillis + ahead
        val text = s"""{"executor": "$executor", "at_ms": $atMs, "tick": $tick}"""
        kept.came(executor, text)
        last(executor) = text
        val isDue = lastKept.get(executor).forall(passedMs - _ >= 300L * TickMs)
        val event = if (isDue) keep(executor) else Some(PassingReportEvent(text))
        check(event, s"in tick $tick of executor $executor")
      }
      if (chance(1)) {
        val executor = random.nextInt(aheadMs.size).toString
        trial.step(s"tick $tick: executor $executor is gone")
        kept.gone(executor)
        val expected = keep(executor)
        last.remove(executor)
        check(expected, "of one that is gone")
      }
      if (chance(1)) {
        trial.step(s"tick $tick: a query ends")
        kept.keepAll()
        check(last.keys.toSeq.flatMap(keep), "at the end of a query")
      }
    }
  }
}
