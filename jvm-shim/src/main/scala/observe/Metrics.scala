package org.apache.spark.sql.millpond.observe

import java.util.concurrent.atomic.LongAdder

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.metrics.source.Source
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.Clock

/** The metrics of one JVM, by their names. They are documented (docs/reference/metrics.md) and
  * stay. Numbers that only grow end with `_total`, and begin at 0 with each JVM. None is for a
  * single store, so their number does not depend on the number of partitions. */
object Metrics {
  val all: Seq[(String, () => Double)] = Seq(
    "stores" -> (() => Observed.stores.size.toDouble),
    "memory_used_bytes" -> (() => Observed.memory._1.toDouble),
    "memory_budget_bytes" -> (() => Observed.memory._2.toDouble),
    "disk_used_bytes" -> (() => Observed.stores.map(_.diskBytes.toDouble).sum),
    "lookups_total" -> total(Counters.lookups),
    "disk_reads_total" -> total(Counters.diskReads),
    "evicted_bytes_total" -> total(Counters.evictedBytes),
    "shrinks_total" -> total(Counters.shrinks),
    "spills_total" -> total(Counters.spills),
    "unflushed_changelogs" -> (() => Observed.stores.map(_.unflushed.toDouble).sum),
    "unflushed_age_seconds" -> (() => oldest(_.unflushedSinceMs)),
    "snapshot_backlog_versions" -> (() => Observed.stores.map(_.behind.toDouble).maxOption
      .getOrElse(0.0)),
    "snapshot_backlog_age_seconds" -> (() => oldest(_.behindSinceMs)),
    "snapshot_age_seconds" -> (() => oldest(_.snapshotMs)),
    "snapshots_total" -> total(Counters.snapshots),
    "snapshot_failures_total" -> total(Counters.snapshotFailures),
    "restores_total" -> total(Counters.restores),
    "agent_starts_total" -> (() => Agent.starts.toDouble),
    "agent_restarts_total" -> (() => math.max(0L, Agent.starts - 1).toDouble),
    "storage_put_requests_total" -> storage("put_requests"),
    "storage_get_requests_total" -> storage("get_requests"),
    "storage_list_requests_total" -> storage("list_requests"),
    "storage_delete_requests_total" -> storage("delete_requests"),
    "storage_failed_requests_total" -> storage("failed_requests"),
    "storage_sent_bytes_total" -> storage("sent_bytes"),
    "storage_received_bytes_total" -> storage("received_bytes"),
    "storage_errors_total" -> total(Counters.storageErrors),
    "stores_moved_total" -> total(Counters.storesMoved),
    "expired_rows_total" -> total(Counters.expiredRows),
    "standby_stores" -> (() => Observed.standbyStores.toDouble),
    "standby_takeovers_total" -> total(Counters.standbyTakeovers),
    "standby_failures_total" -> total(Counters.standbyFailures)
  )

  private def total(counter: LongAdder): () => Double = () => counter.sum.toDouble
  private def storage(name: String): () => Double = () => Counters.storageUse(name).toDouble

  /** The age of the earliest of these times; 0 if there is none. */
  private def oldest(timeMs: ObservedStore => Long): Double = {
    val times = Observed.stores.map(timeMs).filter(_ > 0)
    if (times.isEmpty) 0.0 else math.max(0L, System.currentTimeMillis - times.min) / 1000.0
  }

  private[observe] def gauge(value: () => Double): Gauge[Double] = () => value()
}

/** This JVM's metrics, for whatever sinks its metrics system has. */
private[observe] final class JvmSource extends Source {
  override val sourceName: String = "millpond"
  override val metricRegistry: MetricRegistry = new MetricRegistry
  Metrics.all.foreach { case (name, value) => metricRegistry.register(name, Metrics.gauge(value)) }
}

/** The metrics of all executors, as each last reported them, for a sink of the driver: Prometheus
  * reaches the driver alone, since an executor has no web server. */
private[observe] final class ExecutorsSource(passedMs: () => Long = () => Clock.passedMs)
    extends Source {
  override val sourceName: String = "millpondExecutors"
  override val metricRegistry: MetricRegistry = new MetricRegistry
  // the last report of each executor, and when it came by this JVM's clock; Spark gives no id
  // twice, so one that is gone stays away
  private val reports = new java.util.concurrent.ConcurrentHashMap[String, (Report, Long)]

  private val gone = java.util.concurrent.ConcurrentHashMap.newKeySet[String]

  def reported(report: Report): Unit =
    if (!gone.contains(report.executor) &&
      reports.put(report.executor, (report, passedMs())) == null) {
      val id = report.executor
      Metrics.all.foreach { case (name, _) =>
        metricRegistry.register(nameOf(id, name), Metrics.gauge(() => value(id)(_._1.metric(name))))
      }
      metricRegistry.register(nameOf(id, Age), Metrics.gauge(() =>
          value(id)(r => (passedMs() - r._2) / 1000.0))): Unit
    }

  def removed(executor: String): Unit = {
    gone.add(executor): Unit
    if (reports.remove(executor) != null)
      (Metrics.all.map(_._1) :+ Age).foreach(name => metricRegistry.remove(nameOf(executor, name)))
  }

  private val Age = "report_age_seconds"
  private def nameOf(executor: String, metric: String) = MetricRegistry.name(executor, metric)
  private def value(executor: String)(of: ((Report, Long)) => Double): Double = {
    val came = reports.get(executor)
    if (came == null) 0.0 else of(came)
  }
}
