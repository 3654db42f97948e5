// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.io.File
import java.nio.file.{Path, Paths}
import java.util.{SplittableRandom, UUID}
import java.util.concurrent.locks.LockSupport

import scala.collection.mutable.{ArrayBuffer, LinkedHashMap}
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.execution.streaming.state.{
  KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, StateStore, StateStoreConf, StateStoreId,
  StateStoreProvider, StateStoreProviderId
}
import org.apache.spark.sql.types.{LongType, StructType}

/**
 * Measures one state store provider, named by class, through Spark's own contract. One process
 * measures one contender once.
 *
 * {{{ StoreBench <spec.json> <result.json> }}}
 *
 * `spec`: `checkpoint` (an empty directory), `local_dir` (Spark's scratch), `conf` (session conf,
 * holds the provider class), `keys`, `load_batch`, `ops` (per update batch), `update_batches`,
 * `snapshot_batches` (0: no phase with a concurrent snapshot), `large_batches` (each changes every
 * key; 0: none), `scans`, `restores`, `rollbacks`, `warmup_keys`, `warmup_batches`, `seed`.
 *
 * Keys are rows of two longs, and so are values. The result holds raw durations, in milliseconds,
 * or in microseconds where they are per operation. The Python side takes medians. The benchmark
 * checks every value that it reads: a store that loses an update fails.
 */
object StoreBench {
  def main(args: Array[String]): Unit = {
    require(args.length == 2, "usage: StoreBench <spec.json> <result.json>")
    val mapper = new ObjectMapper()
    val spec = mapper.readTree(new File(args(0)))
    val builder = SparkSession.builder().master("local[1]").appName("millpond-store-bench")
      .config("spark.ui.enabled", "false")
      .config("spark.local.dir", spec.get("local_dir").asText)
    spec.get("conf").properties().asScala.foreach(e => builder.config(e.getKey, e.getValue.asText))
    val spark = builder.getOrCreate().asInstanceOf[ClassicSession]
    try {
      spark.sparkContext.setLogLevel(Option(spec.get("log_level")).map(_.asText).getOrElse("ERROR"))
      SparkSession.setActiveSession(spark)
      spark.streams.active // starts the coordinator of state stores, to which a commit reports
      val measured = if (spec.has("day_batches")) new TtlRun(spark, spec).measure()
      else if (spec.has("prefix_scans")) new ScanRun(spark, spec).measure()
      else if (spec.has("stores")) new ManyStores(spark, spec).measure()
      else new StoreRun(spark, spec).measure()
      mapper.writerWithDefaultPrettyPrinter().writeValue(new File(args(1)), measured)
    } finally spark.stop()
  }
}

/**
 * One pass over all measures. It carries the expected sum of the counters along. So every full scan
 * is also a proof.
 */
private final class StoreRun(spark: ClassicSession, spec: JsonNode) {
  private def int(name: String): Int = spec.get(name).asInt
  private val keys = spec.get("keys").asLong
  private val loadBatch = int("load_batch")
  private val ops = int("ops")
  private val result = new LinkedHashMap[String, Any]
  private val phases = new ArrayBuffer[java.util.Map[String, Any]]
  private val random = new SplittableRandom(spec.get("seed").asLong)
  private val stores = new Stores(spark, Paths.get(spec.get("checkpoint").asText))

  def measure(): java.util.Map[String, Any] = {
    phase("warm-up")(warmUp())
    val before = Memory.settled()
    val store = stores.handle(operator = 0)
    store.open()

    val gcLoad = Memory.gcMs()
    val writtenBefore = Disk.writtenBytes()
    val load = phase("load")(Workload.load(store, keys, loadBatch))
    result("load_ms") = box(load.batchMs)
    result("load_commit_ms") = box(load.commitMs)
    result("load_us_per_key") = load.batchMs.sum * 1000.0 / keys
    val gcAfterLoad = Memory.gcMs()
    result("snapshot_after_load_ms") = phase("snapshot after load")(Clock.ms(store.snapshot()))
    val loaded = Memory.settled()

    val written = new Durable(stores.directory(0))
    val gcUpdate = Memory.gcMs()
    val quiet = phase("update")(Workload.update(store, keys, ops, int("update_batches"), random))
    val gcAfterUpdate = Memory.gcMs()
    val quietBatches = int("update_batches")
    result("bytes_per_batch") = written.newBytes().toDouble / quietBatches
    put("update", quiet)
    result("written_bytes") = Disk.writtenBytes() - writtenBefore
    val local = Paths.get(spec.get("local_dir").asText)
    result("local_bytes") = Disk.bytesBelow(local) + Disk.deletedBytes(local)
    val settled = Memory.settled()
    result("memory") = Map[String, Any](
      "before" -> before.toJava,
      "after_load" -> loaded.toJava,
      "after_update" -> settled.toJava,
      "state_bytes" -> (settled.total - before.total),
      "loaded_state_bytes" -> (loaded.total - before.total)
    ).asJava

    result("scan_us_per_row") =
      box(phase("scan")((1 to int("scans")).map(_ => Workload.scan(store, keys) * 1000.0 / keys)))

    val gcSnapshot = Memory.gcMs()
    if (int("snapshot_batches") > 0) phase("update with snapshots")(withSnapshots(store, written))
    result("gc_ms") = Map("load" -> (gcAfterLoad - gcLoad), "update" -> (gcAfterUpdate - gcUpdate),
      "update_with_snapshots" -> (Memory.gcMs() - gcSnapshot)).asJava

    if (int("large_batches") > 0) {
      val large = phase("large batches")(Workload.updateAll(store, keys, int("large_batches")))
      result("large_commit_ms") = box(large.commitMs)
      result("large_batch_ms") = box(large.batchMs.zip(large.commitMs).map { case (a, b) => a + b })
      result("large_reopen_ms") = box(large.reopenMs)
      result("large_latency_us") = Percentiles.us(large.latencies)
    }

    // The distance to the newest snapshot is defined: one forced snapshot, five changelogs above
    // it.
    phase("settle") {
      Workload.update(store, keys, ops, 1, random, forceSnapshot = true)
      store.snapshot()
      Workload.update(store, keys, ops, 5, random)
    }
    result("rollback_ms") =
      box(phase("rollback")((1 to int("rollbacks")).map(_ => rollback(store))))
    store.close()

    val restores = phase("restore")((1 to int("restores")).map(_ => restore(store)))
    result("restore_first_get_ms") = box(restores.map(_._1))
    result("restore_all_ms") = box(restores.map(_._2))
    result("custom_metrics") = store.customMetrics.asJava
    result("phases") = phases.asJava
    result("keys") = keys
    result("ops") = ops
    result.asJava
  }

  /** Runs every path once at a small size. So no measure pays for the interpreter. */
  private def warmUp(): Unit = {
    val store = stores.handle(operator = 1)
    val some = int("warmup_keys").toLong
    store.open()
    Workload.load(store, some, math.max(1, (some / 4).toInt))
    store.snapshot()
    Workload.update(store, some, math.min(ops.toLong, some).toInt, int("warmup_batches"), random)
    Workload.scan(store, some)
    store.snapshot()
    Workload.update(store, some, math.min(ops.toLong, some).toInt, 2, random)
    store.close()
    store.open()
    Workload.scan(store, some)
    store.close()
  }

  /**
   * Update batches, while another thread runs snapshot maintenance back to back. Spark's
   * maintenance pool does the same less often.
   */
  private def withSnapshots(store: Handle, written: Durable): Unit = {
    val maintenance = new Maintenance(store)
    val batches = int("snapshot_batches")
    written.newBytes()
    maintenance.start()
    val busy =
      try Workload.update(store, keys, ops, batches, random)
      finally maintenance.finish()
    put("update_with_snapshots", busy)
    result("bytes_per_batch_with_snapshots") = written.newBytes().toDouble / batches
    val windows = maintenance.windows
    result("snapshot_ms") = box(windows.map { case (from, to) => (to - from) / 1e6 })
    val during = busy.latenciesWithin(windows)
    result("get_put_during_snapshot_us") = Percentiles.us(during)
    result("commit_during_snapshot_ms") = box(busy.commitsWithin(windows))
  }

  /**
   * Milliseconds until the store is back at the version before the last commit, with its first
   * value read. Then the batch runs again.
   */
  private def rollback(store: Handle): Double = {
    val at = store.version
    val sum = store.expectedSum
    Workload.update(store, keys, ops, 1, random)
    store.version = at
    store.expectedSum = sum
    Workload.update(store, keys, ops, 1, random).reopenMs.head
  }

  /**
   * Milliseconds to the first value, and until every row was read. The provider has nothing local.
   */
  private def restore(store: Handle): (Double, Double) = {
    val start = System.nanoTime()
    store.open()
    val state = store.provider.getStore(store.version, None, false, false)
    val row = Rows.key()
    require(state.get(Rows.keyAt(row, 0), "default") != null,
      "restored store has lost its first key")
    val first = (System.nanoTime() - start) / 1e6
    Workload.readAll(state, store.expectedSum, keys)
    val all = (System.nanoTime() - start) / 1e6
    state.abort()
    store.close()
    (first, all)
  }

  private def put(name: String, batches: Batches): Unit = {
    result(s"${name}_us_per_op") = box(batches.batchMs.map(_ * 1000.0 / ops))
    result(s"${name}_latency_us") = Percentiles.us(batches.latencies)
    result(s"${name}_commit_ms") = box(batches.commitMs)
    result(s"${name}_reopen_ms") = box(batches.reopenMs)
    result(s"${name}_metrics_ms") = box(batches.metricsMs)
  }

  /**
   * Runs `body`, and notes begin and end in epoch milliseconds. By these a profile is cut into
   * phases.
   */
  private def phase[T](name: String)(body: => T): T = {
    val from = System.currentTimeMillis()
    val value = body
    phases += Map[String, Any]("name" -> name, "from_ms" -> from,
      "to_ms" -> System.currentTimeMillis()).asJava
    System.err.println(
      f"store-bench: $name%-22s ${(System.currentTimeMillis() - from) / 1e3}%.2f s")
    value
  }

  private def box(values: Iterable[Double]): java.util.List[Double] = values.toSeq.asJava
}

/** Makes providers the way Spark does on an executor. */
private final class Stores(spark: ClassicSession, checkpoint: Path) {
  private val root = checkpoint.resolve("state").toUri.toString
  private val conf = new StateStoreConf(spark.sessionState.conf)
  val run: UUID = UUID.randomUUID()

  def directory(operator: Long): Path = checkpoint.resolve("state").resolve(operator.toString)

  def handle(operator: Long,
      encoder: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(Rows.keySchema)): Handle =
    new Handle(() =>
      StateStoreProvider.createAndInit(
        StateStoreProviderId(StateStoreId(root, operator, 0), run),
        Rows.keySchema,
        Rows.valueSchema,
        encoder,
        false,
        conf,
        spark.sessionState.newHadoopConf(),
        false,
        None
      ))
}

/**
 * One partition's store over its life: the open provider, the last committed version, and the sum
 * that its counters must have.
 */
private final class Handle(create: () => StateStoreProvider) {
  var version = 0L
  var expectedSum = 0L
  var provider: StateStoreProvider = _
  var customMetrics: Map[String, Long] = Map.empty

  def open(): Unit = provider = create()
  def close(): Unit = { provider.close(); provider = null }

  def snapshot(): Unit = {
    val lock = provider.maintenanceLock.readLock() // as Spark's maintenance pools hold it
    lock.lock()
    try provider.doSnapshotMaintenance()
    finally lock.unlock()
  }
}

private object Rows {
  val keySchema: StructType =
    new StructType().add("k0", LongType, nullable = false).add("k1", LongType, nullable = false)
  val valueSchema: StructType =
    new StructType().add("count", LongType, nullable = false).add("id", LongType, nullable = false)

  private def row(): UnsafeRow = { val r = new UnsafeRow(2); r.pointTo(new Array[Byte](24), 24); r }
  def key(): UnsafeRow = row()
  def value(): UnsafeRow = row()

  /**
   * Returns key number `i`. SplitMix64 mixes its first field. So neighbours in time are no
   * neighbours in key order.
   */
  def keyAt(row: UnsafeRow, i: Long): UnsafeRow = { row.setLong(0, mix(i)); row.setLong(1, i); row }

  def mix(i: Long): Long = {
    var z = i + 0x9e3779b97f4a7c15L
    z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L
    z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL
    z ^ (z >>> 31)
  }

  def valueOf(row: UnsafeRow, count: Long, id: Long): UnsafeRow = {
    row.setLong(0, count); row.setLong(1, id); row
  }
}

/**
 * Durations of some batches. `times(b)` holds `System.nanoTime` before the first operation of batch
 * `b`, and after each of its operations.
 */
private final class Batches {
  val batchMs, commitMs, reopenMs, metricsMs = new ArrayBuffer[Double]
  val times = new ArrayBuffer[Array[Long]]
  val commits = new ArrayBuffer[(Long, Long)]

  def latencies: Array[Long] =
    times.iterator.flatMap(t => (1 until t.length).iterator.map(i => t(i) - t(i - 1))).toArray

  def latenciesWithin(windows: Seq[(Long, Long)]): Array[Long] = times.iterator.flatMap { t =>
    (1 until t.length).iterator.filter(i =>
      windows.exists { case (from, to) => t(i) > from && t(i - 1) < to }).map(i => t(i) - t(i - 1))
  }.toArray

  def commitsWithin(windows: Seq[(Long, Long)]): Seq[Double] =
    commits.toSeq.filter { case (start, end) =>
      windows.exists { case (from, to) => end > from && start < to }
    }.map { case (s, e) => (e - s) / 1e6 }
}

private object Workload {
  /**
   * Inserts keys `0 until keys`. It looks each key up first, as every stateful operator does.
   * `batchMs` is whole batches with their commits.
   */
  def load(handle: Handle, keys: Long, perBatch: Int): Batches = {
    val batches = new Batches
    val (key, value) = (Rows.key(), Rows.value())
    var next = 0L
    while (next < keys) {
      val end = math.min(keys, next + perBatch)
      val start = System.nanoTime()
      val store = handle.provider.getStore(handle.version, None, false, false)
      while (next < end) {
        Rows.keyAt(key, next)
        require(store.get(key, "default") == null, "a key that was never put is there")
        store.put(key, Rows.valueOf(value, 1L, next), "default")
        next += 1
      }
      finish(handle, store, batches)
      batches.batchMs += (System.nanoTime() - start) / 1e6
    }
    handle.expectedSum += keys
    batches
  }

  /**
   * Batches of `ops` random get+put over all keys. `batchMs` is the operations alone. `reopenMs` is
   * getStore and one get.
   */
  def update(handle: Handle, keys: Long, ops: Int, count: Int, random: SplittableRandom,
      forceSnapshot: Boolean = false): Batches = {
    val batches = new Batches
    for (_ <- 0 until count) {
      updateOnce(handle, Array.fill(ops)(random.nextLong(keys)), batches, forceSnapshot)
    }
    batches
  }

  /** Batches that change every key once, in an order that mixes them. */
  def updateAll(handle: Handle, keys: Long, count: Int): Batches = {
    val batches = new Batches
    val step = Iterator.from(1).map(i => (keys * 0.618).toLong + i).find(i => coprime(i, keys)).get
    for (b <- 1 to count)
      updateOnce(handle, Array.tabulate(keys.toInt)(i => (i.toLong + b) * step % keys), batches,
        forceSnapshot = false)
    batches
  }

  private def coprime(a: Long, b: Long): Boolean =
    java.math.BigInteger.valueOf(a).gcd(java.math.BigInteger.valueOf(b)).longValue == 1L

  private def updateOnce(handle: Handle, picks: Array[Long], batches: Batches,
      forceSnapshot: Boolean): Unit = {
    val (key, value) = (Rows.key(), Rows.value())
    val ops = picks.length
    val times = new Array[Long](ops + 1)
    val opened = System.nanoTime()
    val store = handle.provider.getStore(handle.version, None, forceSnapshot, false)
    require(store.get(Rows.keyAt(key, picks(0)), "default") != null, "a committed key is missing")
    batches.reopenMs += (System.nanoTime() - opened) / 1e6
    times(0) = System.nanoTime()
    var i = 0
    while (i < ops) {
      val old = store.get(Rows.keyAt(key, picks(i)), "default")
      store.put(key, Rows.valueOf(value, old.getLong(0) + 1, old.getLong(1)), "default")
      i += 1
      times(i) = System.nanoTime()
    }
    batches.times += times
    batches.batchMs += (times(ops) - times(0)) / 1e6
    finish(handle, store, batches)
    handle.expectedSum += ops
  }

  private def finish(handle: Handle, store: StateStore, batches: Batches): Unit = {
    val start = System.nanoTime()
    val version = store.commit()
    val end = System.nanoTime()
    require(version == handle.version + 1, s"commit returned $version after ${handle.version}")
    handle.version = version
    batches.commitMs += (end - start) / 1e6
    batches.commits += ((start, end))
    handle.customMetrics = store.metrics.customMetrics.map { case (metric, amount) =>
      metric.name -> amount
    }
    batches.metricsMs += (System.nanoTime() - end) / 1e6
    require(store.getStateStoreCheckpointInfo().batchVersion == version,
      "the commit reports another version")
  }

  /** Milliseconds of a full scan of the committed state. */
  def scan(handle: Handle, keys: Long): Double = {
    val store = handle.provider.getStore(handle.version, None, false, false)
    val ms = Clock.ms(readAll(store, handle.expectedSum, keys))
    store.abort()
    ms
  }

  def readAll(store: StateStore, expectedSum: Long, keys: Long): Unit = {
    val rows = store.iterator("default")
    var (count, sum) = (0L, 0L)
    while (rows.hasNext) { sum += rows.next().value.getLong(0); count += 1 }
    rows.close()
    require(count == keys && sum == expectedSum,
      s"scan found $count rows with sum $sum; expected $keys and $expectedSum")
  }
}

/**
 * Runs snapshot maintenance back to back on a thread of its own. A call shorter than `IdleNs` found
 * nothing to do.
 */
private final class Maintenance(handle: Handle) {
  private val IdleNs = 2000000L
  private val done = new ArrayBuffer[(Long, Long)]
  @volatile private var stopping = false
  @volatile private var failure: Throwable = _
  private val thread = new Thread(
    () =>
      try {
        while (!stopping) {
          val start = System.nanoTime()
          handle.snapshot()
          val end = System.nanoTime()
          if (end - start >= IdleNs) done += ((start, end))
          LockSupport.parkNanos(5000000L)
        }
      } catch { case e: Throwable => failure = e },
    "bench-snapshot-maintenance"
  )

  def start(): Unit = thread.start()
  def finish(): Unit = {
    stopping = true
    thread.join()
    if (failure != null) throw new IllegalStateException("snapshot maintenance failed", failure)
  }
  def windows: Seq[(Long, Long)] = done.toSeq
}
