package org.apache.spark.sql.millpond.driver

import java.nio.file.{Files, Path}
import java.time.{ZoneId, ZoneOffset}

import org.apache.spark.sql.catalyst.util.DateTimeUtils

/** Whether a time among the grouping columns is the same in Python's workers as in the session.
  * With pandas Spark's worker gets it as the clocks of the session's zone show it, and makes the
  * key of the state from that by its own clocks. Each executor asks for itself.
  *
  * @param session the session's time zone
  * @param workers the `TZ` of the workers, if it is not that of their executor */
private[driver] final case class WorkerClocks(session: String, workers: Option[String]) {
  def agree: Boolean = {
    val own = WorkerClocks.zone(workers.orElse(Option(System.getenv("TZ"))), WorkerClocks.Machines)
    own.exists(_.getRules == DateTimeUtils.getZoneId(session).getRules)
  }
}

private[driver] object WorkerClocks {
  private val Machines = Path.of("/etc/localtime")
  private val Folder = "zoneinfo/"
  private val regions = ZoneId.getAvailableZoneIds

  /** The zone of a process with this `TZ`, as far as it is known. That of the JVM may be another
    * one: `user.timezone` is its alone.
    *
    * @param machines the link to the machine's zone */
  def zone(tz: Option[String], machines: Path): Option[ZoneId] = tz match {
    case Some(name) => named(name.stripPrefix(":"))
    case None if !Files.exists(machines) => Some(ZoneOffset.UTC)
    case None =>
      val file = machines.toRealPath().toString
      if (file.contains(Folder)) named(file) else None // a copy has no name
  }

  /** A region, or nothing. What else Java reads is something else to the C library: `UTC+3` is
    * three hours behind there, and what it does not know is UTC. */
  private def named(text: String): Option[ZoneId] = {
    val at = text.lastIndexOf(Folder)
    val name = (if (at < 0) text else text.substring(at + Folder.length)).stripPrefix("posix/")
    if (name.isEmpty) Some(ZoneOffset.UTC)
    else Option.when(regions.contains(name))(ZoneId.of(name))
  }
}
