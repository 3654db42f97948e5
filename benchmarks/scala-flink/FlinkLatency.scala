// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.lang.{Boolean => JBoolean, Long => JLong}
import java.nio.file.{Files, Path}
import java.util.concurrent.atomic.AtomicInteger

import scala.annotation.nowarn

import org.apache.flink.api.common.eventtime.WatermarkStrategy
import org.apache.flink.api.common.functions.{MapFunction, OpenContext}
import org.apache.flink.api.common.state.{CheckpointListener, ValueState, ValueStateDescriptor}
import org.apache.flink.api.common.typeinfo.Types
import org.apache.flink.api.java.functions.KeySelector
import org.apache.flink.api.java.tuple.{Tuple2, Tuple3}
import org.apache.flink.configuration.Configuration
import org.apache.flink.core.execution.JobClient
import org.apache.flink.streaming.api.datastream.DataStream
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
import org.apache.flink.streaming.api.functions.KeyedProcessFunction
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink
import org.apache.flink.streaming.api.functions.source.legacy.{
  RichParallelSourceFunction, SourceFunction
}
import org.apache.flink.util.Collector

/** The queries of `bench_latency.py` as jobs of Flink, in this process.
  *
  * Arguments: the plan's text, the query, ms between two checkpoints, ms that a record may wait in
  * a buffer, a directory, and the file for the result. From Kafka to Kafka: also the broker's
  * address, and the command of the process that sends the records.
  */
object FlinkLatency {
  type Event = Tuple2[JLong, JLong] // key, at
  private val DeadlineMs = 120000L

  /** How many sources have sent what fills the state. */
  private val filled = new AtomicInteger

  @nowarn("cat=deprecation") // the simple sources are the old ones
  def main(args: Array[String]): Unit = {
    val Seq(text, query, checkpointMs, bufferMs, directory, result, kafka @ _*) =
      args.toSeq: @unchecked
    val plan = Plan.of(text)
    val conf = new Configuration
    conf.setString("state.backend.type", "rocksdb")
    conf.setString("execution.checkpointing.incremental", "true")
    conf.setString("execution.checkpointing.interval", s"$checkpointMs ms")
    conf.setString("execution.checkpointing.storage", "filesystem")
    conf.setString("execution.checkpointing.dir", s"file:$directory/checkpoints")
    conf.setString("io.tmp.dirs", s"$directory/tmp")
    conf.setString("execution.buffer-timeout.interval", s"$bufferMs ms") // default: 100
    val env = StreamExecutionEnvironment.createLocalEnvironment(plan.partitions, conf)
    val keyed = (from: DataStream[Event]) =>
      from.keyBy(new Key, Types.LONG).process(logic(query), FlinkKafka.EventType)
    val json = kafka match {
      case Seq(servers, load @ _*) =>
        val sender = new FlinkKafkaLoad(load)
        val source = FlinkKafka.source(servers)
        keyed(env.fromSource(source, WatermarkStrategy.noWatermarks[Event](), "in"))
          .sinkTo(FlinkKafka.sink(servers)): Unit
        env.executeAsync("latency"): Unit
        sender.result()
      case _ =>
        keyed(env.addSource(new Paced(plan), "paced", FlinkKafka.EventType))
          .map(new Take, Types.LONG)
          .sinkTo(new DiscardingSink[JLong]): Unit
        val client = env.executeAsync("latency")
        awaitAll(plan, checkpointMs.toLong, client)
        Latencies.json()
    }
    Files.writeString(Path.of(result), json)
    sys.exit(0)
  }

  private def awaitAll(plan: Plan, checkpointMs: Long, client: JobClient): Unit = {
    val end = System.currentTimeMillis() +
      (plan.warmupUs + plan.measuredUs) / 1000 + 3 * checkpointMs + DeadlineMs
    while (!Latencies.complete) {
      if (System.currentTimeMillis() > end) {
        System.err.println(s"no results of all records: ${client.getJobStatus.get()}")
        sys.exit(1)
      }
      Thread.sleep(500)
    }
  }

  private def logic(query: String): KeyedProcessFunction[JLong, Event, Event] = query match {
    case "count" => new Count
    case "dedup" => new Dedup
    case "sessions" => new Sessions
  }

  private final class Key extends KeySelector[Event, JLong] {
    override def getKey(event: Event): JLong = event.f0
  }

  private final class Take extends MapFunction[Event, JLong] {
    override def map(event: Event): JLong = {
      Latencies.record(event.f1, WallClock.nowUs())
      event.f1
    }
  }

  private final class Count extends KeyedProcessFunction[JLong, Event, Event] {
    @transient private var count: ValueState[JLong] = _
    override def open(context: OpenContext): Unit =
      count = getRuntimeContext.getState(new ValueStateDescriptor("count", Types.LONG))
    override def processElement(
        event: Event,
        context: KeyedProcessFunction[JLong, Event, Event]#Context,
        out: Collector[Event]
    ): Unit = {
      val before = count.value()
      count.update(if (before == null) 1L else before + 1)
      out.collect(event)
    }
  }

  private final class Dedup extends KeyedProcessFunction[JLong, Event, Event] {
    @transient private var seen: ValueState[JBoolean] = _
    override def open(context: OpenContext): Unit =
      seen = getRuntimeContext.getState(new ValueStateDescriptor("seen", Types.BOOLEAN))
    override def processElement(
        event: Event,
        context: KeyedProcessFunction[JLong, Event, Event]#Context,
        out: Collector[Event]
    ): Unit = if (seen.value() == null) {
      seen.update(true)
      out.collect(event)
    }
  }

  private final class Sessions extends KeyedProcessFunction[JLong, Event, Event] {
    private type Session = Tuple3[JLong, JLong, JLong] // first, last, number of records
    @transient private var session: ValueState[Session] = _
    override def open(context: OpenContext): Unit = {
      val of = Types.TUPLE[Session](Types.LONG, Types.LONG, Types.LONG)
      session = getRuntimeContext.getState(new ValueStateDescriptor("open", of))
    }
    override def processElement(
        event: Event,
        context: KeyedProcessFunction[JLong, Event, Event]#Context,
        out: Collector[Event]
    ): Unit = {
      val at = event.f1
      val now = Option(session.value()).filter(at - _.f1 <= FlinkLatency.GapUs) match {
        case Some(before) => Tuple3.of(before.f0, at, JLong.valueOf(before.f2 + 1))
        case None => Tuple3.of(at, at, JLong.valueOf(1))
      }
      session.update(now)
      out.collect(event)
    }
  }

  private val GapUs = 30000000L // as in LatencyQueries

  /** The paced source: the schedule begins with the first checkpoint that has the filled state. */
  @nowarn("cat=deprecation")
  private final class Paced(plan: Plan)
      extends RichParallelSourceFunction[Event]
      with CheckpointListener {
    @volatile private var running = true

    override def run(context: SourceFunction.SourceContext[Event]): Unit = {
      val partition = getRuntimeContext.getTaskInfo.getIndexOfThisSubtask
      for (n <- 0L until plan.loaded(partition))
        emit(context, plan.number(partition, n), 0)
      filled.incrementAndGet()
      while (running && Latencies.begunUs.isEmpty) Thread.sleep(1)
      Latencies.begunUs.foreach(plan.pace(partition, _)(running)(emit(context, _, _)))
      while (running) Thread.sleep(10)
    }

    private def emit(context: SourceFunction.SourceContext[Event], key: Long, at: Long): Unit =
      context.getCheckpointLock.synchronized {
        context.collect(Tuple2.of(JLong.valueOf(key), JLong.valueOf(at)))
      }

    override def cancel(): Unit = running = false

    override def notifyCheckpointComplete(id: Long): Unit =
      if (filled.get == plan.partitions) Latencies.begin(plan)
  }
}
