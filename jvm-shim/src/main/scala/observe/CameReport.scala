package org.apache.spark.sql.millpond.observe

/** A report, and how long ago it came. Two machines' clocks differ, so no age is the difference of
  * both: the executor's clock tells how old something was in the report, and this JVM's what has
  * passed since then.
  *
  * @param sinceMs since it came to this JVM; 0 where ages are as of the report */
private[observe] final case class CameReport(report: Report, sinceMs: Long) {
  /** How long ago something was.
    * @param thenMs when it was, by the executor's clock */
  def agoMs(thenMs: Long): Long = math.max(0L, report.atMs - thenMs) + sinceMs
}

private[observe] object CameReport {
  /** Ages of an executor that is gone, and of an application that has ended, are as of the report.
    *
    * @param passedMs now, by this JVM's clock */
  def of(stored: StoredReport, isLive: Boolean, passedMs: Long): CameReport =
    CameReport(Report.parse(stored.report),
      if (isLive && !stored.gone) passedMs - stored.cameMs else 0L)
}
