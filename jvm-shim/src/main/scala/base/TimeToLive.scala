package org.apache.spark.sql.millpond.base

/** How long the rows of an operator stay after their last write, as one batch sees it.
  *
  * @param nowMs the time that Spark gave the batch. It is in Spark's offset log, so an attempt that
  * is repeated has the same */
final case class TimeToLive(ttlMs: Long, nowMs: Long) {
  /** The age that this batch gives what it writes: its time in seconds, rounded up to a 64th of the
    * time to live, so that a row that is written again and again changes its age seldom. */
  def stamp: Long = {
    val width = math.max(1L, ttlMs / 1000L / TimeToLive.Steps)
    val seconds = TimeToLive.divideUp(math.max(0L, nowMs), 1000L)
    math.min(TimeToLive.divideUp(seconds, width) * width, TimeToLive.LastStamp)
  }

  /** Rows of this age, and older ones, end with this batch. */
  def deadline: Long = Math.floorDiv(nowMs - ttlMs, 1000L)
}

/** The operators of one batch that have a time to live.
  *
  * @param ttlMs by the operator's number */
final case class BatchTtls(runId: String, nowMs: Long, ttlMs: Map[Long, Long])

object TimeToLive {
  val Steps = 64L
  private val LastStamp = 0xFFFFFFFFL // of four bytes
  private def divideUp(a: Long, b: Long): Long = -Math.floorDiv(-a, b)
  private val told = new ToldByTask[BatchTtls]

  /** The task of this thread runs such operators. */
  def enter(ttls: BatchTtls): Unit = told.tell(ttls)((_, now) => now)

  /** What the task of this thread told of an operator. A state reader may work within the task of
    * another query: so the run counts. */
  def of(runId: String, operator: Long): Option[TimeToLive] =
    told.get.filter(_.runId == runId)
      .flatMap(b => b.ttlMs.get(operator).map(TimeToLive(_, b.nowMs)))
}
