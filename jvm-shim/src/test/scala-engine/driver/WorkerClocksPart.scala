package org.apache.spark.sql.millpond.driver

import java.nio.file.{Files, Path}
import java.time.{ZoneId, ZoneOffset}

import org.apache.spark.sql.millpond.disk.Scratch
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The zone of a process: what its environment says, or the machine. */
object WorkerClocksPart extends Part {
  override val name = "worker-clocks"

  private val zones = Vector("Europe/Berlin", "Etc/UTC", "UTC", "Asia/Kathmandu", "EST5EDT")
  // to POSIX UTC+3 is three hours behind, to Java ahead; and what Java alone knows is UTC to the C
  // library
  private val unknown = Vector("CET-1CEST,M3.5.0,M10.5.0/3", "Nowhere/Atall", "right/Europe/Berlin",
    "UTC+3", "GMT-2", "UT+1", "+03:00", "Z")

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    import trial.{equal, random}
    val (zone, other) = (zones(random.nextInt(zones.size)), zones(random.nextInt(zones.size)))
    trial.step(s"$zone on a machine in $other")
    val folder = dir.toPath.resolve("share/zoneinfo")
    def inFolder(name: String): Path = {
      val file = folder.resolve(name)
      Files.createDirectories(file.getParent): Unit
      if (Files.exists(file)) file else Files.createFile(file)
    }
    val machine = dir.toPath.resolve("localtime")
    equal(WorkerClocks.zone(None, machine), Some(ZoneOffset.UTC), "the zone without any")
    Files.createSymbolicLink(machine, inFolder(other)): Unit
    equal(WorkerClocks.zone(None, machine), Some(ZoneId.of(other)), "the zone of the machine")
    val copied = Files.createFile(dir.toPath.resolve("copied"))
    equal(WorkerClocks.zone(None, copied), None, "the zone of a machine that has a file")
    Seq(zone, s":$zone", s"${inFolder(zone)}", s":${inFolder(s"posix/$zone")}").foreach { tz =>
      equal(WorkerClocks.zone(Some(tz), machine), Some(ZoneId.of(zone)), s"the zone of TZ=$tz")
    }
    Seq("", ":").foreach { tz =>
      equal(WorkerClocks.zone(Some(tz), machine), Some(ZoneOffset.UTC), s"the zone of TZ=$tz")
    }
    unknown.foreach(tz => equal(WorkerClocks.zone(Some(tz), machine), None, s"the zone of TZ=$tz"))
    val isUtc = Set("Etc/UTC", "UTC")
    Seq("Etc/UTC", "UTC", "GMT", "+00:00", "Z").foreach { session =>
      equal(WorkerClocks(session, Some(zone)).agree, isUtc(zone), s"whether $session is $zone")
    }
    equal(WorkerClocks(other, Some(zone)).agree, zone == other || Set(zone, other) == isUtc,
      s"whether $other is $zone")
  }
}
