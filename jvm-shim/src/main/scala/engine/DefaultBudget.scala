package org.apache.spark.sql.millpond.engine

import java.lang.management.ManagementFactory

import scala.collection.mutable

import com.sun.management.OperatingSystemMXBean

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.internal.config
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{Event, Events, Json, Options}

/** The memory budget. If the user set none, the agent decides it, once a JVM. If the user set it,
  * the agent tells whether there is room. This tells the agent what the JVM knows. */
private object DefaultBudget {
  private val Mib = 1L << 20
  private val answers = mutable.Map.empty[Option[Long], Long] // by what the user set

  /** The first store asks. Others that open meanwhile need the same answer, and wait for it. */
  def bytes(options: Options): Long = synchronized {
    options.long("memory.budget") match {
      // without Spark around it a store is a test of the engine, and may have no agent
      case Some(budget) if SparkEnv.get == null => budget
      case set => answers.getOrElseUpdate(set, ask(options))
    }
  }

  private def ask(options: Options): Long = {
    val answer = Agent.call("memory_budget", facts(options), options.agentSettings)
    val found = answer.get("budget_bytes").asLong
    val (reason, missing) = (answer.get("reason").asText, answer.get("missing_bytes").asLong)
    Events.log(Event.of("memory_planned", "bytes" -> found, "reason" -> reason))
    if (missing > 0) Events.log(Event.of("memory_short", "bytes" -> missing, "reason" -> reason))
    found
  }

  private def conf: SparkConf = Option(SparkEnv.get).fold(new SparkConf(false))(_.conf)
  private def master: String = conf.get("spark.master", "local")

  /** Whether YARN runs this JVM. It may kill by its own count, without a control group. */
  def isYarn: Boolean = master.startsWith("yarn")

  private def facts(options: Options) = {
    val conf = this.conf
    val offHeap =
      if (conf.get(config.MEMORY_OFFHEAP_ENABLED)) conf.get(config.MEMORY_OFFHEAP_SIZE) else 0L
    val python = conf.get(config.Python.PYSPARK_EXECUTOR_MEMORY).fold(0L)(_ * Mib)
    // the JVM knows the limits of its container, in both versions of control groups
    val total = ManagementFactory.getOperatingSystemMXBean.asInstanceOf[OperatingSystemMXBean]
      .getTotalMemorySize
    val facts = Json.obj().put("total_bytes", total)
      .put("heap_bytes", Runtime.getRuntime.maxMemory).put("off_heap_bytes", offHeap)
      .put("python_bytes", python)
      .put("block_cache_bytes", options.long("rocksdb.blockCache").get)
      .put("is_local", master.startsWith("local"))
    options.long("memory.budget").foreach(facts.put("budget_bytes", _))
    if (isYarn)
      facts.put("container_bytes", (heapMib(conf) + overheadMib(conf)) * Mib + offHeap + python)
    facts
  }

  private def heapMib(conf: SparkConf): Long = conf.get(config.EXECUTOR_MEMORY)

  private def overheadMib(conf: SparkConf): Long =
    conf.get(config.EXECUTOR_MEMORY_OVERHEAD).getOrElse(
      math.max((heapMib(conf) * conf.get(config.EXECUTOR_MEMORY_OVERHEAD_FACTOR)).toLong,
        conf.get(config.EXECUTOR_MIN_MEMORY_OVERHEAD)))
}
