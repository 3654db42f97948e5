package org.apache.spark.sql.millpond.testing

import org.apache.spark.sql.{classic, Dataset, Row}
import org.apache.spark.sql.execution.streaming.sources.{
  ForeachBatchSink, PythonForeachBatchFunction
}
import org.apache.spark.sql.streaming.{OutputMode, Trigger}
import org.apache.spark.util.{Clock, ManualClock}

/** Starts a query whose batches take their time from a clock that a test moves. So two runs of it
  * have the same processing times, and state with a time to live has the same bytes. */
object ClockedQuery {
  def clock(nowMs: Long): ManualClock = new ManualClock(nowMs)

  /** Starts `frame` over all present input, as `Trigger.AvailableNow` does. */
  def start(
      frame: Dataset[Row],
      mode: String,
      checkpoint: String,
      batch: PythonForeachBatchFunction,
      clock: Clock): classic.StreamingQuery = {
    val rows = frame.asInstanceOf[classic.Dataset[Row]]
    rows.sparkSession.streams.startQuery(
      userSpecifiedName = None,
      userSpecifiedCheckpointLocation = Some(checkpoint),
      df = rows,
      extraOptions = Map.empty,
      sink = new ForeachBatchSink[Row](batch.call(_, _), rows.exprEnc),
      outputMode = mode match {
        case "append" => OutputMode.Append()
        case "complete" => OutputMode.Complete()
        case _ => OutputMode.Update()
      },
      recoverFromCheckpointLocation = true,
      trigger = Trigger.AvailableNow(),
      triggerClock = clock
    )
  }
}
