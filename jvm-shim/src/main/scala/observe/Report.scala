package org.apache.spark.sql.millpond.observe

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{Host, Json}

/** What one executor said about itself at one moment: JSON, so that the driver and a history server
  * read it with no class of the sender. */
final class Report private (val json: JsonNode) {
  def executor: String = json.path("executor").asText
  def atMs: Long = json.path("at_ms").asLong
  def metric(name: String): Double = json.path("metrics").path(name).asDouble
  def stores: Seq[JsonNode] = json.path("stores").elements.asScala.toSeq
  def text: String = Json.text(json)
}

object Report {
  // A report of a thousand stores has 300 KB.
  private val MostStores = 1000

  def parse(text: String): Report = new Report(Json.parse(text))

  /** What this JVM has to say. */
  def now(executor: String): Report = {
    val out = Json.obj().put("executor", executor).put("at_ms", System.currentTimeMillis)
      .put("host", Host.name).put("pid", ProcessHandle.current.pid)
      .put("agent_pid", Agent.pid)
    val metrics = out.putObject("metrics")
    Metrics.all.foreach { case (name, value) => metrics.put(name, value()) }
    val stores = Observed.stores.toSeq.sortBy(s => (s.runId, s.operator, s.partition, s.name))
    val list = out.putArray("stores")
    stores.take(MostStores).foreach(describe(_, list.addObject()))
    new Report(out.put("stores_left_out", math.max(0, stores.size - MostStores)))
  }

  private def describe(s: ObservedStore, out: ObjectNode): Unit = {
    out.put("run_id", s.runId).put("operator", s.operator).put("partition", s.partition)
      .put("store", s.name).put("version", s.version).put("memory_bytes", s.memoryBytes)
      .put("lookups", s.lookups).put("disk_reads", s.diskReads).put("unflushed", s.unflushed)
      .put("unflushed_since_ms", s.unflushedSinceMs).put("snapshot_version", s.snapshotVersion)
      .put("snapshot_ms", s.snapshotMs).put("behind", s.behind)
      .put("behind_since_ms", s.behindSinceMs).put("batch_ms", s.batchMs)
      .put("restore_ms", s.restoreMs)
    val work = out.putArray("background")
    s.background.now.foreach { case (what, since) =>
      work.addObject().put("what", what).put("since_ms", since)
    }
  }
}
