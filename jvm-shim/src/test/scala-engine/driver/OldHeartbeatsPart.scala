package org.apache.spark.sql.millpond.driver

import java.io.File
import java.nio.file.Files
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.millpond.base.LocalDirs
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A run deletes what killed drivers have left for a week, and nothing that somebody renews,
  * however far off their clocks are. The model is the set of files that may go. */
object OldHeartbeatsPart extends Part {
  override val name = "old-heartbeats"
  private val HourMs = 3600000L

  override def run(trial: Trial): Unit = {
    import trial.{chance, random}
    val folder = Files.createTempDirectory("millpond-old-heartbeats").toFile
    try {
      val nowMs = System.currentTimeMillis + random.between(-1000L, 1000L) * HourMs
      def file(name: String, ageMs: Long): File = {
        val made = new File(folder, name)
        Files.writeString(made.toPath, "{}"): Unit
        trial.check(made.setLastModified(nowMs - ageMs), s"$made gets no time")
        made
      }
      val own = file(s"${UUID.randomUUID}.json", 0L)
      val others = Seq.fill(random.nextInt(if (chance(10)) 250 else 12)) {
        val ageMs = random.between(-400L, 400L) * HourMs
        val isRun = chance(80)
        val name = if (isRun) s"${UUID.randomUUID}.json"
        else Seq(s"command-${UUID.randomUUID}.json", s"command-${UUID.randomUUID}.hold",
          s".${UUID.randomUUID}.json.crc", "notes.json")(random.nextInt(4))
        trial.step(s"$name is ${ageMs / HourMs} h old")
        file(name, ageMs) -> (isRun && ageMs > OldHeartbeats.MostAgeMs)
      }
      var (running, left) = (true, 0)
      val old = new OldHeartbeats(new Path(own.toURI), new Configuration(), () => {
        left -= 1
        running && left >= 0
      })
      old.find()
      val renewed = others.collect { case (made, _) if chance(20) =>
        // by a clock that is off
        trial.check(made.setLastModified(made.lastModified + random.between(1L, 20L) * 1000L),
          s"$made gets no time")
        made
      }.toSet
      val gone = others.map(_._1).filter(made => chance(5) && made.delete()).toSet // another run
      val beats = chance(90)
      if (beats) trial.check(own.setLastModified(nowMs + 15000L), "there is no beat")
      running = chance(90)
      left = if (chance(80)) Int.MaxValue else random.nextInt(8)
      val (endsAfter, isFree) = (left, left == Int.MaxValue)
      trial.step(s"beats: $beats, running: $running, ends after $left looks at it")
      old.delete()
      val kept = folder.listFiles.toSet
      trial.check(kept(own), "the run's own heartbeat is gone")
      val mayGo = others.collect { case (made, true) if !renewed(made) => made }.toSet
      others.foreach { case (made, _) =>
        trial.check(kept(made) || gone(made) || mayGo(made), s"$made is gone")
      }
      val deleted = mayGo.count(made => !kept(made) && !gone(made))
      if (!beats || !running) trial.equal(deleted, 0, "what a run deletes that is not alive")
      else if (!isFree) trial.check(deleted <= endsAfter, s"$deleted go after the end")
      else if (others.size <= OldHeartbeats.MostAtOnce)
        trial.check(mayGo.forall(!kept(_)), "an old heartbeat is left")
      trial.check(deleted <= OldHeartbeats.MostAtOnce, s"$deleted go at once")
    } finally LocalDirs.delete(folder)
  }
}
