// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import org.apache.spark.sql.{DataFrame, Encoders, ForeachWriter, Row}
import org.apache.spark.sql.streaming._

/** What `bench_latency.py` has in Scala: the query of sessions, and the sink that takes times. */
object LatencyQueries {
  final case class Event(key: Long, at: Long)
  final case class Session(first: Long, last: Long, n: Long)
  final case class Out(key: Long, at: Long, n: Long)

  /** A record that comes later than this after the one before it begins a new session. */
  val GapUs = 30000000L

  def sessions(rows: DataFrame): DataFrame = {
    import rows.sparkSession.implicits._
    rows
      .as[Event]
      .groupByKey(_.key)
      .transformWithState(new Sessions, TimeMode.None(), OutputMode.Update())
      .toDF()
  }

  def sink(): ForeachWriter[Row] = new TimesSink

  private final class Sessions extends StatefulProcessor[Long, Event, Out] {
    @transient private var open: ValueState[Session] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      open = getHandle.getValueState("open", Encoders.product[Session], TTLConfig.NONE)
    override def handleInputRows(
        key: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Out] = rows.map { row =>
      val before = Option(open.get()).filter(row.at - _.last <= GapUs)
      val now = before.fold(Session(row.at, row.at, 1))(s => Session(s.first, row.at, s.n + 1))
      open.update(now)
      Out(key, row.at, now.n)
    }
  }

  private final class TimesSink extends ForeachWriter[Row] {
    override def open(partition: Long, epoch: Long): Boolean = true
    override def process(row: Row): Unit =
      Latencies.record(row.getLong(row.fieldIndex("at")), WallClock.nowUs())
    override def close(error: Throwable): Unit = ()
  }
}
