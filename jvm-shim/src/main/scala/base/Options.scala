package org.apache.spark.sql.millpond.base

import java.util.Locale

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/** The options of one session, checked against the table that `python/src/millpond/config/table.py`
  * declares. */
final class Options private (values: Map[String, JsonNode]) {
  private def node(name: String): JsonNode =
    values.getOrElse(name, throw MillpondError.internal(s"option $name is not declared"))
  def string(name: String): Option[String] = Option(node(name)).filterNot(_.isNull).map(_.asText)
  def long(name: String): Option[Long] = Option(node(name)).filterNot(_.isNull).map(_.asLong)
  def int(name: String): Int = node(name).asInt
  def boolean(name: String): Boolean = node(name).asBoolean

  def json: ObjectNode = {
    val out = Json.obj()
    values.foreach { case (name, value) => out.set[JsonNode](name, value) }
    out
  }

  def agentSettings: AgentSettings =
    AgentSettings(string("agent.python"), string("agent.driverPython"),
      long("agent.startTimeoutMs").get, int("agent.callTimeoutMs"))
}

object Options {
  private lazy val table: JsonNode = {
    val in = getClass.getClassLoader.getResourceAsStream("millpond/options.json")
    try Json.parse(in)
    finally in.close()
  }
  lazy val prefix: String = table.get("prefix").asText
  private lazy val declared: Map[String, JsonNode] =
    table.get("options").elements.asScala.map(o => o.get("name").asText -> o).toMap

  /** @param confs session settings, full names; those of others are ignored. */
  def resolve(confs: Iterable[(String, String)]): Options = {
    // Spark's session settings keep the user's case, and so does the table
    val chosen =
      confs.collect { case (k, v) if k.startsWith(prefix) => k.stripPrefix(prefix) -> v }.toMap
    chosen.keys.find(!declared.contains(_)).foreach { name =>
      val nearest = declared.keys.minBy(distance(_, name))
      throw MillpondError.of("UNKNOWN_OPTION",
        s"there is no option $prefix$name; the nearest one is $prefix$nearest.")
    }
    new Options(declared.map { case (name, o) =>
      name -> chosen.get(name).fold(o.get("default"))(parse(name, o, _))
    })
  }

  /** Refuse a setting whose name is nearly ours: Spark takes any name, and would ignore it in
    * silence. */
  def refuseNear(confs: Iterable[(String, String)]): Unit =
    confs.iterator.map(_._1).filter(k => k.startsWith("spark.") && !k.startsWith(prefix)).foreach {
      name =>
        val parts = name.split('.')
        val at = parts.indexWhere(p => p.length > 5 && distance(p, "millpond") <= 2)
        // other settings of that name may be the job's own
        if (at < parts.length - 1 && (at == 1 || at > 1 && parts(1) == "sql")) {
          val meant = prefix + parts.drop(at + 1).mkString(".")
          throw MillpondError.of("UNKNOWN_OPTION",
            s"the setting $name does nothing; Millpond's options begin with $prefix.",
            s"Did you mean $meant? `millpond options` lists all.")
        }
    }

  private def parse(name: String, option: JsonNode, text: String): JsonNode = {
    def invalid(why: String): Nothing =
      throw MillpondError.of("INVALID_OPTION", s"the option $prefix$name = '$text' $why.")
    def bounded(number: Double): Unit = {
      val low = option.get("minimum")
      val high = option.get("maximum")
      if (!low.isNull && number < low.asDouble) invalid(s"is below ${low.asText}")
      if (!high.isNull && number > high.asDouble) invalid(s"is above ${high.asText}")
    }
    option.get("type").asText match {
      case "str" =>
        val choices = option.get("choices").elements.asScala.map(_.asText).toSeq
        if (text.trim.isEmpty) invalid("is empty")
        else if (choices.isEmpty) Json.value(text.trim)
        else {
          val chosen = text.trim.toLowerCase(Locale.ROOT)
          if (!choices.contains(chosen)) invalid(s"is none of ${choices.mkString(", ")}")
          Json.value(chosen)
        }
      case "bool" => text.trim.toLowerCase(Locale.ROOT) match {
          case "true" => Json.value(true)
          case "false" => Json.value(false)
          case _ => invalid("is neither true nor false")
        }
      case "float" =>
        val number = text.trim.toDoubleOption.getOrElse(invalid("is no number"))
        bounded(number)
        Json.value(number)
      case kind =>
        val number = (if (kind == "bytes") bytes(text) else text.trim.toLongOption).getOrElse(
          invalid(if (kind == "bytes") "is no size" else "is no whole number"))
        bounded(number.toDouble)
        Json.value(number)
    }
  }

  private def bytes(text: String): Option[Long] = {
    val pattern = """(\d{1,18})\s*([kmgt]?)(?:i?b)?""".r
    text.trim.toLowerCase(Locale.ROOT) match {
      case pattern(number, unit) =>
        val shift = 10 * " kmgt".indexOf(if (unit.isEmpty) " " else unit)
        Some(math.min(number.toLong, Long.MaxValue >> shift) << shift) // above any maximum
      case _ => None
    }
  }

  /** Edit distance. */
  private[base] def distance(a: String, b: String): Int = {
    val row = Array.range(0, b.length + 1)
    for (i <- 1 to a.length) {
      var diagonal = row(0)
      row(0) = i
      for (j <- 1 to b.length) {
        val cost = if (a(i - 1).toLower == b(j - 1).toLower) diagonal else diagonal + 1
        diagonal = row(j)
        row(j) = math.min(cost, math.min(row(j), row(j - 1)) + 1)
      }
    }
    row(b.length)
  }
}
