package org.apache.spark.sql.millpond.testing

import java.sql.Timestamp
import java.time.Duration

import org.apache.spark.sql.{
  classic, DataFrame, Encoder, Encoders, KeyValueGroupedDataset, SparkSessionExtensions
}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.streaming._

/** The stateful operators that only the Scala API has, over rows of `k string, ts
  * timestamp, v bigint`. Python asks for one by its name (`integration/scala_state_cases.py`),
  * and runs it. */
object StreamShapes {
  final case class Event(k: Option[String], ts: Timestamp, v: Long)
  /** The grouping key: a struct that may have a null. */
  final case class Key(k: Option[String], odd: Boolean)
  final case class OddKey(odd: Boolean, k: Option[String])
  final case class Counted(key: String, n: Long)
  final case class Out(k: Option[String], odd: Boolean, what: String, state: String)
  final case class Emitted(k: Option[String], at: Timestamp, n: Long)

  final case class Inner(name: Option[String], tags: Seq[String])
  final case class Seen(n: Option[Long], inner: Inner, amounts: Map[String, BigDecimal])
  final case class Count(n: Option[Long])
  final case class NamedCount(n: Option[Long], name: Option[String])

  /** Returns a session of the same context, without extensions. Its constructor is private only
    * in Scala. */
  def sessionWithoutExtensions(session: classic.SparkSession): classic.SparkSession = {
    val arguments =
      Seq(session.sparkContext, None, None, new SparkSessionExtensions, Map.empty, Map.empty)
    val constructor =
      classOf[classic.SparkSession].getConstructors.find(_.getParameterCount == arguments.size).get
    constructor.newInstance(arguments: _*).asInstanceOf[classic.SparkSession]
  }

  def build(name: String, input: DataFrame): DataFrame = {
    val session = input.sparkSession
    import session.implicits._
    val events = input.as[Event].withWatermark("ts", "10 seconds")
    val groups = events.groupByKey(e => Key(e.k, e.v % 2 == 1))
    def seeds[S: Encoder](make: Long => S): KeyValueGroupedDataset[Key, S] =
      Seq((Option("a"), 1000L), (None, 7L), (Option("zz"), 5L)).toDS().groupByKey(s =>
        Key(s._1, s._2 % 2 == 1)).mapValues(s => make(s._2))

    def states(processor: StatefulProcessor[Key, Event, Out], time: TimeMode): DataFrame =
      groups.transformWithState(processor, time, OutputMode.Update()).toDF()

    name match {
      case "map-groups" =>
        groups.mapGroupsWithState(GroupStateTimeout.NoTimeout())(Groups.mapped).toDF()
      case "flat-map-update" =>
        groups.flatMapGroupsWithState(OutputMode.Update(), GroupStateTimeout.EventTimeTimeout())(
          Groups.byEventTime).toDF()
      case "flat-map-append" =>
        groups.flatMapGroupsWithState(OutputMode.Append(), GroupStateTimeout.EventTimeTimeout())(
          Groups.byEventTime).toDF()
      case "flat-map-processing-time" =>
        groups.flatMapGroupsWithState(OutputMode.Update(),
          GroupStateTimeout.ProcessingTimeTimeout())(Groups.byProcessingTime).toDF()
      case "flat-map-counts" =>
        groups.flatMapGroupsWithState(OutputMode.Update(), GroupStateTimeout.EventTimeTimeout())(
          Groups.countedUntil(byEventTime = true)).toDF()
      case "flat-map-counts-processing-time" =>
        groups.flatMapGroupsWithState(OutputMode.Update(),
          GroupStateTimeout.ProcessingTimeTimeout())(
          Groups.countedUntil(byEventTime = false)).toDF()
      case "flat-map-initial-state" =>
        groups.flatMapGroupsWithState(OutputMode.Update(), GroupStateTimeout.NoTimeout(),
          seeds(identity[Long]))(Groups.counted).toDF()
      case "event-time" => states(new Everything(TimeMode.EventTime()), TimeMode.EventTime())
      case "processing-time" =>
        states(new Everything(TimeMode.ProcessingTime()), TimeMode.ProcessingTime())
      case "no-time" => states(new Everything(TimeMode.None()), TimeMode.None())
      case "initial-state" =>
        groups.transformWithState(new Seeded, TimeMode.None(), OutputMode.Update(),
          seeds(n => Count(Some(n)))).toDF()
      case "typed-key" =>
        // the rows lie by an Int, the state keeps a Long
        input.withColumn("i", (col("v") % 7).cast("int")).groupBy("i").as[Long, Event]
          .transformWithState(new Counting[Long], TimeMode.None(), OutputMode.Update()).toDF()
      case "reordered-key" =>
        // the rows lie by k and odd, the state keeps odd and k
        input.withColumn("odd", col("v") % 2 === 1).groupBy("k", "odd").as[OddKey, Event]
          .transformWithState(new Counting[OddKey], TimeMode.None(), OutputMode.Update()).toDF()
      case "tuple-key" =>
        input.withColumn("odd", col("v") % 2 === 1).groupBy("k", "odd")
          .as[(Option[String], Boolean), Event]
          .transformWithState(new Counting[(Option[String], Boolean)], TimeMode.None(),
            OutputMode.Update()).toDF()
      case "both" => states(new Dropping(drop = false), TimeMode.None())
      case "dropped" => states(new Dropping(drop = true), TimeMode.None())
      case "counted" => states(new Evolving, TimeMode.None())
      case "named" => states(new Evolved, TimeMode.None())
      case "then-window" =>
        groups.transformWithState(new Emitting, "at", OutputMode.Append()).groupBy(window(col("at"),
            "10 seconds").as("w"))
          .agg(sum("n").as("n"), collect_set("k").as("keys"))
      case other => throw new IllegalArgumentException(s"no shape '$other'")
    }
  }
}

/** The functions for `mapGroupsWithState` and `flatMapGroupsWithState`. */
private object Groups {
  import StreamShapes._

  def mapped(key: Key, rows: Iterator[Event], state: GroupState[Seen]): Out = {
    val values = rows.map(_.v).toList.sorted
    val old = state.getOption.getOrElse(Seen(Some(0L), Inner(None, Nil), Map.empty))
    val now = Seen(old.n.map(_ + values.size), Inner(key.k, values.map(_.toString).take(3)),
      old.amounts + (s"v${values.head % 4}" -> BigDecimal(values.last) / 4))
    state.update(now)
    Out(key.k, key.odd, old.inner.toString, shown(now))
  }

  def byEventTime(key: Key, rows: Iterator[Event], state: GroupState[Seen]): Iterator[Out] =
    if (state.hasTimedOut) {
      val last = shown(state.get)
      state.remove()
      Iterator(Out(key.k, key.odd, "timed out", last))
    } else {
      val found = rows.toList
      val out = mapped(key, found.iterator, state)
      state.setTimeoutTimestamp(math.max(found.map(_.ts.getTime).max + 5000,
          state.getCurrentWatermarkMs() + 1))
      Iterator(out)
    }

  /** A timeout of a millisecond fires in the next batch. A timeout of an hour never fires. */
  def byProcessingTime(key: Key, rows: Iterator[Event], state: GroupState[Seen]): Iterator[Out] =
    if (state.hasTimedOut) { state.remove(); Iterator(Out(key.k, key.odd, "timed out", "")) }
    else {
      val out = mapped(key, rows, state)
      state.setTimeoutDuration(if (key.odd) 3600000L else 1L)
      Iterator(out)
    }

  /** Keeps state without nested types. State format 1 cannot tell a null struct from an absent
    * state with a timeout. */
  def countedUntil(byEventTime: Boolean)(
      key: Key, rows: Iterator[Event], state: GroupState[Count]): Iterator[Out] = {
    val last = state.getOption.toString
    if (state.hasTimedOut) { state.remove(); Iterator(Out(key.k, key.odd, "timed out", last)) }
    else {
      state.update(Count(Some(state.getOption.flatMap(_.n).getOrElse(0L) + rows.size)))
      if (byEventTime) state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 15000)
      else state.setTimeoutDuration(if (key.odd) 3600000L else 1L)
      Iterator(Out(key.k, key.odd, last, state.get.toString))
    }
  }

  def counted(key: Key, rows: Iterator[Event], state: GroupState[Long]): Iterator[Out] = {
    val before = state.getOption
    state.update(before.getOrElse(0L) + rows.map(_.v).sum)
    Iterator(Out(key.k, key.odd, before.toString, state.get.toString))
  }

  def shown(seen: Seen): String = s"${seen.n} ${seen.inner} ${seen.amounts.toSeq.sortBy(_._1)}"
}

/** Every kind of state, with a value of nested types. By processing time it also has TTL. A TTL of
  * an hour never ends in a test. A TTL of a millisecond ends before the next batch. */
private class Everything(time: TimeMode)
    extends StatefulProcessor[StreamShapes.Key, StreamShapes.Event, StreamShapes.Out] {
  import StreamShapes._

  @transient private var seen: ValueState[Seen] = _
  @transient private var recent: ListState[Count] = _
  @transient private var latest: MapState[Inner, Count] = _
  @transient private var lasting
      : Seq[(ValueState[Count], ListState[Count], MapState[String, Count])] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val count = Encoders.product[Count]
    seen = getHandle.getValueState("seen", Encoders.product[Seen], TTLConfig.NONE)
    recent = getHandle.getListState("recent", count, TTLConfig.NONE)
    latest = getHandle.getMapState("latest", Encoders.product[Inner], count, TTLConfig.NONE)
    val ttls = if (time == TimeMode.ProcessingTime())
      Seq("kept" -> Duration.ofHours(1), "brief" -> Duration.ofMillis(1))
    else Nil
    lasting = ttls.map { case (name, ttl) =>
      val config = TTLConfig(ttl)
      (getHandle.getValueState(s"${name}Value", count, config),
        getHandle.getListState(s"${name}List", count, config),
        getHandle.getMapState(s"${name}Map", Encoders.STRING, count, config))
    }
  }

  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Out] = {
    val before = shown()
    val values = rows.map(_.v).toList.sorted
    val old = if (seen.exists()) seen.get() else Seen(Some(0L), Inner(None, Nil), Map.empty)
    seen.update(Seen(old.n.map(_ + values.size), Inner(key.k, values.map(_.toString)),
        old.amounts + (s"v${values.head % 4}" -> BigDecimal(values.last) / 4)))
    values.foreach { v =>
      recent.appendValue(Count(Some(v)))
      latest.updateValue(Inner(Some(s"m${v % 3}"), Seq("t")), Count(Some(v)))
      lasting.foreach { case (value, list, map) =>
        value.update(Count(Some(v)))
        list.appendValue(Count(Some(v)))
        map.updateValue(s"m${v % 3}", Count(Some(v)))
      }
    }
    if (recent.get().size > 3) {
      recent.put(recent.get().toArray.takeRight(1))
      recent.appendList(Array(Count(None), Count(Some(-1L))))
    }
    if (latest.containsKey(Inner(Some("m1"), Seq("t"))) && values.size > 1)
      latest.removeKey(Inner(Some("m1"), Seq("t")))
    if (values.size == 2) lasting.foreach { case (_, list, map) => list.clear(); map.clear() }
    if (time == TimeMode.EventTime()) {
      val watermark = timers.getCurrentWatermarkInMs()
      getHandle.listTimers().toList.filter(_ > watermark + 25000).foreach(getHandle.deleteTimer)
      getHandle.registerTimer(watermark + 20000)
      getHandle.registerTimer(watermark + 30000)
    }
    if (time == TimeMode.ProcessingTime()) {
      getHandle.registerTimer(1)
      getHandle.registerTimer(timers.getCurrentProcessingTimeInMs() + 1)
      getHandle.registerTimer(2000000000000L)
    }
    Iterator(Out(key.k, key.odd, s"input, before: $before", shown()))
  }

  override def handleExpiredTimer(
      key: Key, timers: TimerValues, expired: ExpiredTimerInfo): Iterator[Out] = {
    val at = expired.getExpiryTimeInMs()
    if (seen.exists() && seen.get().n.exists(_ % 2 == 0)) { latest.clear(); seen.clear() }
    Iterator(Out(key.k, key.odd,
        if (time == TimeMode.EventTime()) s"fired at $at"
        else if (at == 1) "fired late"
        else "fired", shown()))
  }

  private def shown(): String = {
    val lists = lasting.flatMap { case (value, list, map) =>
      Seq(Option(value.get()), list.get().toList, map.iterator().toList.sortBy(_._1))
    }
    val timers = if (time == TimeMode.None()) 0 else getHandle.listTimers().size
    Seq(if (seen.exists()) Groups.shown(seen.get()) else "", recent.get().toList,
      latest.iterator().toList.sortBy(_._1.name), lists, s"$timers timers").mkString("; ")
  }
}

private class Seeded
    extends StatefulProcessorWithInitialState[StreamShapes.Key, StreamShapes.Event,
      StreamShapes.Out, StreamShapes.Count] {
  import StreamShapes._
  @transient private var sum: ValueState[Count] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    sum = getHandle.getValueState("sum", Encoders.product[Count], TTLConfig.NONE)

  override def handleInitialState(key: Key, seed: Count, timers: TimerValues): Unit =
    sum.update(seed)

  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Out] = {
    val before = Option(sum.get())
    sum.update(Count(Some(before.flatMap(_.n).getOrElse(0L) + rows.map(_.v).sum)))
    Iterator(Out(key.k, key.odd, before.toString, sum.get().toString))
  }
}

private class Dropping(drop: Boolean)
    extends StatefulProcessor[StreamShapes.Key, StreamShapes.Event, StreamShapes.Out] {
  import StreamShapes._
  @transient private var kept: ValueState[Count] = _
  @transient private var dropped: ListState[Count] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    kept = getHandle.getValueState("kept", Encoders.product[Count], TTLConfig.NONE)
    if (drop) getHandle.deleteIfExists("dropped")
    else dropped = getHandle.getListState("dropped", Encoders.product[Count], TTLConfig.NONE)
  }

  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Out] = {
    val values = rows.map(_.v).toList.sorted
    kept.update(Count(Some(Option(kept.get()).flatMap(_.n).getOrElse(0L) + values.size)))
    if (!drop) values.foreach(v => dropped.appendValue(Count(Some(v))))
    Iterator(Out(key.k, key.odd, if (drop) "dropped" else "both", kept.get().toString))
  }
}

private class Evolving
    extends StatefulProcessor[StreamShapes.Key, StreamShapes.Event, StreamShapes.Out] {
  import StreamShapes._
  @transient private var value: ValueState[Count] = _
  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    value = getHandle.getValueState("value", Encoders.product[Count], TTLConfig.NONE)
  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Out] = {
    val before = Option(value.get())
    value.update(Count(Some(rows.map(_.v).sum)))
    Iterator(Out(key.k, key.odd, before.toString, value.get().toString))
  }
}

/** [[Evolving]] with one more field in its value. */
private class Evolved
    extends StatefulProcessor[StreamShapes.Key, StreamShapes.Event, StreamShapes.Out] {
  import StreamShapes._
  @transient private var value: ValueState[NamedCount] = _
  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    value = getHandle.getValueState("value", Encoders.product[NamedCount], TTLConfig.NONE)
  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Out] = {
    val before = Option(value.get())
    value.update(NamedCount(Some(rows.map(_.v).sum), Some("named")))
    Iterator(Out(key.k, key.odd, before.toString, value.get().toString))
  }
}

private class Emitting
    extends StatefulProcessor[StreamShapes.Key, StreamShapes.Event, StreamShapes.Emitted] {
  import StreamShapes._
  @transient private var count: ValueState[Count] = _
  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    count = getHandle.getValueState("count", Encoders.product[Count], TTLConfig.NONE)
  override def handleInputRows(
      key: Key, rows: Iterator[Event], timers: TimerValues): Iterator[Emitted] = {
    val found = rows.toList
    val n = Option(count.get()).flatMap(_.n).getOrElse(0L) + found.size
    count.update(Count(Some(n)))
    Iterator(Emitted(key.k, new Timestamp(found.map(_.ts.getTime).max), n))
  }
}

/** Counts the rows of a key. */
private final class Counting[K]
    extends StatefulProcessor[K, StreamShapes.Event, StreamShapes.Counted] {
  @transient private var seen: ValueState[Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    seen = getHandle.getValueState[Long]("seen", Encoders.scalaLong, TTLConfig.NONE)

  override def handleInputRows(key: K, rows: Iterator[StreamShapes.Event],
      timers: TimerValues): Iterator[StreamShapes.Counted] = {
    val n = (if (seen.exists()) seen.get() else 0L) + rows.size
    seen.update(n)
    Iterator(StreamShapes.Counted(key.toString, n))
  }
}
