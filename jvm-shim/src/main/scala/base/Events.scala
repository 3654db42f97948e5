package org.apache.spark.sql.millpond.base

import java.util.concurrent.ConcurrentLinkedQueue

import scala.jdk.CollectionConverters._

import org.apache.spark.internal.{Logging, MessageWithContext}

/** Something that somebody may ask about later. `python/src/millpond/events/table.py` declares
  * names and fields; the build copies the table into the jar. Fields never hold credentials or
  * rows. */
final case class Event(name: String, fields: Seq[(String, Any)], cause: Option[Throwable] = None)

object Event {
  private val MostCharacters = 300

  def of(name: String, fields: (String, Any)*): Event = Event(name, fields)

  /** The fields `error` and `reason`. Only Millpond's own messages are known to be harmless. */
  def describe(e: Throwable): Seq[(String, Any)] = e match {
    case m: MillpondException => Seq("error" -> m.kind, "reason" -> shortened(m.getMessage))
    case other => Seq("error" -> other.getClass.getName, "reason" -> "")
  }

  private def shortened(text: String): String =
    if (text.length <= MostCharacters) text
    else text.take(MostCharacters - 3).stripTrailing + "..."
}

/** Writes events into Spark's log, one line each. With Spark's structured logging the fields are
  * the line's context too. */
object Events extends Logging {
  // users write it in their log's settings, so it does not depend on where this class lies
  override protected def logName: String = Names.EventsLogger

  private lazy val table = {
    val in = getClass.getClassLoader.getResourceAsStream("millpond/events.json")
    try Json.parse(in)
    finally in.close()
  }
  private val plain = "[A-Za-z0-9_.:/+-]+".r

  /** Callers hold no lock: the log may be a slow disk. */
  def log(event: Event): Unit = {
    val all = ("event" -> event.name) +: event.fields
    val text = all.map { case (name, value) => s"$name=${shown(value.toString)}" }.mkString(" ")
    val entry = MessageWithContext(text,
      new java.util.HashMap(all.map { case (n, v) => n -> v.toString }.toMap.asJava))
    if (table.path(event.name).path("level").asText == "INFO") logInfo(entry)
    else event.cause.fold(logWarning(entry))(logWarning(entry, _))
  }

  private def shown(text: String): String =
    if (plain.matches(text)) text else Json.text(Json.value(text))
}

/** Events that happened under a lock: they are logged when it is free. */
private[millpond] final class EventBuffer {
  private val noted = new ConcurrentLinkedQueue[Event]

  def note(event: Event): Unit = noted.add(event): Unit

  /** Log what was noted. Callers hold no lock. */
  def publish(): Unit = {
    var event = noted.poll()
    while (event != null) {
      Events.log(event)
      event = noted.poll()
    }
  }
}
