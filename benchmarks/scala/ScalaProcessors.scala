// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.sql.Timestamp

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

/** The processors of `bench_python_queries.py` in Scala, over the same stream. */
object ScalaProcessors {
  final case class Event(timestamp: Timestamp, key: Long)
  final case class Out(key: Long, n: Long)

  def build(query: String, stream: DataFrame): DataFrame = {
    import stream.sparkSession.implicits._
    val grouped = stream.as[Event].groupByKey(_.key)
    val (processor, time) = query match {
      case "value" => (new Value, TimeMode.None())
      case "map"   => (new Entries, TimeMode.None())
      case "list"  => (new Items, TimeMode.None())
      case _       => (new Timers, TimeMode.EventTime())
    }
    grouped.transformWithState(processor, time, OutputMode.Update()).toDF()
  }

  private final class Value extends StatefulProcessor[Long, Event, Out] {
    @transient private var count: ValueState[Long] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      count = getHandle.getValueState[Long]("count", Encoders.scalaLong, TTLConfig.NONE)
    override def handleInputRows(
        key: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Out] = {
      val now = (if (count.exists()) count.get() else 0L) + rows.size
      count.update(now)
      Iterator(Out(key, now))
    }
  }

  private final class Entries extends StatefulProcessor[Long, Event, Out] {
    @transient private var latest: MapState[Long, Long] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      latest = getHandle.getMapState[Long, Long](
        "latest",
        Encoders.scalaLong,
        Encoders.scalaLong,
        TTLConfig.NONE
      )
    override def handleInputRows(
        key: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Out] = {
      val total = (0L until 3L).filter(latest.containsKey).map(latest.getValue).sum
      latest.updateValue(total % 3, total + rows.size)
      Iterator(Out(key, total))
    }
  }

  private final class Items extends StatefulProcessor[Long, Event, Out] {
    @transient private var recent: ListState[Long] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      recent = getHandle.getListState[Long]("recent", Encoders.scalaLong, TTLConfig.NONE)
    override def handleInputRows(
        key: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Out] = {
      val seen = recent.get().toVector
      if (seen.isEmpty) recent.put((0L until 10L).toArray)
      else recent.appendValue(seen.last + rows.size)
      Iterator(Out(key, seen.sum))
    }
  }

  private final class Timers extends StatefulProcessor[Long, Event, Out] {
    override def init(mode: OutputMode, time: TimeMode): Unit = ()
    override def handleInputRows(
        key: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Out] = {
      rows.foreach(row => getHandle.registerTimer(row.timestamp.getTime - 999))
      Iterator.empty
    }
    override def handleExpiredTimer(
        key: Long,
        times: TimerValues,
        fired: ExpiredTimerInfo
    ): Iterator[Out] = Iterator(Out(key, fired.getExpiryTimeInMs()))
  }
}
