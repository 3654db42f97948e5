// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.lang.management.ManagementFactory
import java.nio.file.{Files, Paths}
import java.util.UUID
import java.util.concurrent.Executors

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.execution.streaming.state.{
  NoPrefixKeyStateEncoderSpec, StateStoreConf, StateStoreId, StateStoreProvider,
  StateStoreProviderId
}

/**
 * Many small stores in one executor: what they cost to open, to keep and to commit.
 *
 * `spec`: that of StoreBench with `stores`, `rows` (in each, written by each batch), `batches`,
 * `threads` (task slots). Stores have 200 partitions an operator.
 */
private final class ManyStores(spark: ClassicSession, spec: JsonNode) {
  private def int(name: String): Int = spec.get(name).asInt
  private val root = Paths.get(spec.get("checkpoint").asText).resolve("state").toUri.toString
  private val conf = new StateStoreConf(spark.sessionState.conf)
  private val hadoopConf = spark.sessionState.newHadoopConf()
  private val rows = int("rows")
  private val count = int("stores")

  private final class Store(operator: Long, partition: Int) {
    private var provider: StateStoreProvider = _
    private var version = 0L

    def open(run: UUID): Unit = provider = StateStoreProvider.createAndInit(
      StateStoreProviderId(StateStoreId(root, operator, partition), run), Rows.keySchema,
      Rows.valueSchema, NoPrefixKeyStateEncoderSpec(Rows.keySchema), false, conf, hadoopConf, false,
      None)

    def batch(): Unit = {
      val (key, value) = (Rows.key(), Rows.value())
      val store = provider.getStore(version, None, false, false)
      var i = 0L
      while (i < rows) {
        val was = store.get(Rows.keyAt(key, i), "default")
        require((if (was == null) 0L else was.getLong(0)) == version, "a row is not the last one")
        store.put(key, Rows.valueOf(value, version + 1, i), "default")
        i += 1
      }
      store.commit(): Unit
      version += 1
    }

    def maintain(): Unit = {
      val lock = provider.maintenanceLock.readLock() // as Spark's maintenance pools hold it
      lock.lock()
      try provider.doMaintenance()
      finally lock.unlock()
    }

    def close(): Unit = provider.close()
  }

  private val stores = (0 until count).map(i => new Store((i / 200).toLong + 1, i % 200))
  private val pool = Executors.newFixedThreadPool(int("threads"))

  def measure(): java.util.Map[String, Any] =
    try {
      val first = new Store(0, 0)
      val warm = UUID.randomUUID()
      for (_ <- 1 to 3) { first.open(warm); first.batch(); first.maintain(); first.close() }
      val before = Holds.now()
      val run = UUID.randomUUID()
      val start = each { s => s.open(run); s.batch() }
      val batches = (1 to int("batches")).map(_ => each(_.batch()))
      val maintenance = each(_.maintain())
      val again = each(_.maintain())
      val after = Holds.now()
      val afterRest = each(_.batch())
      each(_.close()): Unit
      val other = UUID.randomUUID()
      val restart = each { s => s.open(other); s.batch() }
      Map[String, Any]("stores" -> count, "start_ms" -> start, "batch_ms" -> batches.asJava,
        "maintenance_ms" -> maintenance, "idle_maintenance_ms" -> again,
        "after_rest_ms" -> afterRest, "restart_ms" -> restart,
        "before" -> before.toJava, "after" -> after.toJava).asJava
    } finally pool.shutdownNow(): Unit

  /** Milliseconds until the task slots have done it to all stores. */
  private def each(work: Store => Unit): Double = {
    val begun = System.nanoTime()
    val tasks = stores.map(s => pool.submit((() => work(s)): Runnable))
    tasks.foreach(_.get(): Unit)
    (System.nanoTime() - begun) / 1e6
  }
}

/** What the process holds, its children's memory included. */
private final case class Holds(memory: Memory, files: Int, threads: Int) {
  def toJava: java.util.Map[String, Any] =
    Map[String, Any]("memory" -> memory.toJava, "files" -> files, "threads" -> threads).asJava
}

private object Holds {
  def now(): Holds = {
    val memory = Memory.settled()
    val files = Files.list(Paths.get("/proc/self/fd"))
    try Holds(memory, files.count().toInt, ManagementFactory.getThreadMXBean.getThreadCount)
    finally files.close()
  }
}
