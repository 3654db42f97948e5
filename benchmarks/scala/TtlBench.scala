// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.nio.file.Paths
import java.util.SplittableRandom

import scala.collection.mutable.{ArrayBuffer, HashMap, LinkedHashMap}
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.classic.{SparkSession => ClassicSession}

/**
 * What a time to live costs, and what it is good for. Two stores in one process take turns: rows of
 * one of the operators 0 and 1 end, those of the other stay.
 *
 * `spec`, beside that of `StoreBench`: `keys`, `load_batch`, `ops`, `update_batches`, `restores`,
 * `ttl_ms`, `on_operator` (whose rows end); and of the simulated day: `day_batches` (0: no day),
 * `day_keys` (new ones in each batch), `day_old` (keys of earlier batches), `day_ttl_ms`.
 */
private final class TtlRun(spark: ClassicSession, spec: JsonNode) {
  private def int(name: String): Int = spec.get(name).asInt
  private val keys = spec.get("keys").asLong
  private val result = new LinkedHashMap[String, Any]
  private val stores = new Stores(spark, Paths.get(spec.get("checkpoint").asText))
  private var nowMs = 1900000000000L

  // Reflection: Spark's own stores are measured without Millpond's jar.
  private val base = "org.apache.spark.sql.millpond.base"
  private lazy val make = Class.forName(s"$base.BatchTtls").getConstructors.head
  private lazy val enter =
    Class.forName(s"$base.TimeToLive").getMethods.find(_.getName == "enter").get
  private def tell(ttls: (Long, Long)*): Unit = enter.invoke(null,
    make.newInstance(stores.run.toString, Long.box(nowMs), ttls.toMap).asInstanceOf[AnyRef]): Unit

  def measure(): java.util.Map[String, Any] = {
    cost()
    if (int("day_batches") > 0) day()
    result.asJava
  }

  /** Batches of random get+put, a minute from one to the next, by a time to live of a day. */
  private def cost(): Unit = {
    val ttlMs = spec.get("ttl_ms").asLong
    val random = new SplittableRandom(spec.get("seed").asLong)
    val on = int("on_operator").toLong
    val both = Seq((if (on == 0L) "on" else "off") -> stores.handle(0),
      (if (on == 0L) "off" else "on") -> stores.handle(1))
    both.foreach(_._2.open())
    val times = both.map { case (name, _) => name -> new ArrayBuffer[Batches] }.toMap
    tell(on -> ttlMs)
    both.foreach { case (name, handle) =>
      val load = Workload.load(handle, keys, int("load_batch"))
      result(s"load_${name}_us") = load.batchMs.sum * 1000.0 / keys
    }
    val warmUp = int("update_batches") / 4
    for (batch <- 0 until int("update_batches") + warmUp) {
      nowMs += 60000L
      tell(on -> ttlMs)
      val seed = random.nextLong()
      // whoever comes second finds a warmer processor
      (if (batch % 2 == 0) both else both.reverse).foreach { case (name, handle) =>
        val one = Workload.update(handle, keys, int("ops"), 1, new SplittableRandom(seed))
        if (batch >= warmUp) times(name) += one
      }
    }
    times.foreach { case (name, batches) =>
      result(s"get_put_${name}_us") = batches.map(_.batchMs.head * 1000.0 / int("ops")).asJava
      result(s"commit_${name}_ms") = batches.map(_.commitMs.head).asJava
      result(s"open_${name}_ms") = batches.map(_.reopenMs.head).asJava
    }
    both.foreach { case (name, handle) =>
      handle.snapshot()
      result(s"restore_${name}_ms") = (1 to int("restores")).map { _ =>
        handle.close()
        Clock.ms {
          handle.open()
          handle.provider.getStore(handle.version, None, false, false).abort()
        }
      }.asJava
      handle.close()
    }
  }

  /** A day of `dropDuplicates`: each key is looked up, and put if it is not there. */
  private def day(): Unit = {
    val ttlMs = spec.get("day_ttl_ms").asLong
    val batches = int("day_batches")
    val stepMs = 24L * 3600 * 1000 / batches
    for ((name, operator) <- Seq("off" -> 2L, "on" -> 3L)) {
      val handle = stores.handle(operator)
      handle.open()
      val random = new SplittableRandom(spec.get("seed").asLong)
      val ages = new HashMap[Long, Long] // the model: when a key was let through
      val ends = new HashMap[Long, ArrayBuffer[Long]]
      val (key, value) = (Rows.key(), Rows.valueOf(Rows.value(), 1L, 1L))
      val rows, ms, memory = new ArrayBuffer[Double]
      var next = 0L
      for (batch <- 0 until batches) {
        nowMs += stepMs
        val width = math.max(1L, ttlMs / 1000 / 64)
        val age = Math.floorDiv(Math.floorDiv(nowMs + 999, 1000L) + width - 1, width) * width
        if (operator == 3L) {
          tell(3L -> ttlMs)
          ends.keys.filter(_ * 1000 + ttlMs <= nowMs).toSeq.foreach(old =>
            ends.remove(old).get.foreach(ages.remove))
        } else tell()
        val first = next
        val since = math.max(0L, first - int("day_keys").toLong * batches / 4) // of six hours
        val wanted = Array.tabulate(int("day_keys") + int("day_old"))(i =>
          if (i < int("day_keys")) first + i else since + random.nextLong(first + 1 - since))
        next += int("day_keys")
        var passed = 0
        val start = System.nanoTime()
        val store = handle.provider.getStore(handle.version, None, false, false)
        wanted.foreach { k =>
          if (store.get(Rows.keyAt(key, k), "default") == null) {
            store.put(key, value, "default")
            passed += 1
          }
        }
        handle.version = store.commit()
        ms += (System.nanoTime() - start) / 1e6
        var expected = 0
        wanted.foreach(k =>
          if (!ages.contains(k)) {
            ages(k) = age
            ends.getOrElseUpdate(age, new ArrayBuffer[Long]) += k
            expected += 1
          })
        val metrics = store.metrics
        require(passed == expected && metrics.numKeys == ages.size,
          s"batch $batch: $passed passed and ${metrics.numKeys} are there; " +
            s"expected $expected and ${ages.size}")
        rows += metrics.numKeys.toDouble
        memory += metrics.memoryUsedBytes.toDouble
        if (batch % 4 == 3) handle.snapshot()
      }
      result(s"day_$name") = Map[String, Any]("rows" -> rows.asJava, "ms" -> ms.asJava,
        "memory_bytes" -> memory.asJava).asJava
      handle.close()
    }
  }
}
