package org.apache.spark.sql.millpond.driver

import java.util.{Locale, UUID}
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.millpond.base.Json

/** Says which settings of Spark's own stores the user has set, since they do nothing here: a bound
  * on memory would vanish in silence. `python/src/millpond/config/sparks.py` declares them. The log
  * gets names only: a value may be anything. */
private object SparksSettings extends Logging {
  private val byRun = new ConcurrentHashMap[UUID, Seq[String]]

  private lazy val table: JsonNode = {
    val in = getClass.getClassLoader.getResourceAsStream("millpond/sparks.json")
    try Json.parse(in)
    finally in.close()
  }
  // Spark's RocksDB store reads its settings whatever their case
  private lazy val declared: Map[String, JsonNode] =
    table.get("settings").elements.asScala.map(s => lower(s.get("name").asText) -> s).toMap
  private lazy val below: String = lower(table.get("below").asText)

  /** Asked when the query starts, as `AskedProviders`: its own session soon has settings that its
    * offset log recorded, which no user has set. */
  def started(query: StreamExecution, run: UUID): Unit = {
    val dropped = among(query.sparkSession.sessionState.conf.getAllConfs.keySet)
    if (dropped.nonEmpty) byRun.put(run, dropped): Unit
  }

  /** Each with the option to set instead. One whose option is set, too, is not lost. */
  private def among(names: Set[String]): Seq[String] = names.toSeq.sorted.flatMap { name =>
    declared.get(lower(name)) match {
      case Some(setting) if setting.get("always").asBoolean => None
      case Some(setting) if !setting.get("instead").isNull =>
        val option = setting.get("instead").asText
        Option.unless(names.contains(option))(s"$name ($option)")
      case Some(_) => Some(s"$name (none)")
      case None => Option.when(lower(name).startsWith(below))(s"$name (none)")
    }
  }

  /** Once for a run: its first plan with state on Millpond. */
  def say(run: UUID): Unit = Option(byRun.remove(run)).foreach(dropped =>
    logWarning("settings of Spark's own state stores do nothing on Millpond. Each with the " +
      s"option to set instead: ${dropped.mkString(", ")}"))

  def ended(run: UUID): Unit = { byRun.remove(run); () }

  private def lower(name: String): String = name.toLowerCase(Locale.ROOT)
}
