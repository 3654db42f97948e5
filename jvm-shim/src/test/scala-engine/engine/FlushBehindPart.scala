package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Batches of the same size fill memory with dirty rows. The flush that runs beside a batch comes
  * in time, so that no batch waits for one; and not before, so that its file is as large as can
  * be. */
object FlushBehindPart extends Part {
  override val name = "flush-behind"

  override def run(trial: Trial): Unit = {
    import trial.random
    val share = random.between(1L, 1L << 40)
    val bytes = random.between(1L, math.max(2L, share / 2))
    var now = Committed.Nothing
    (1L to 50L).foreach { version =>
      // the batch begins, and Spark has proven the version before it
      val flushed = now.mustFlushBehind(share)
      val before = now.dirtyBytes
      trial.step(s"a batch of $bytes beside $before of $share")
      if (flushed) trial.check(before + 2 * bytes > share, "the next batch had room as well")
      trial.check(before + bytes <= share, "a batch has no room")
      // the flush ends while the batch runs
      val left = if (flushed) Vector.empty else now.pending
      now = now.copy(version = version,
        pending = left :+ PendingChangelog(version, "id", "path", bytes))
    }
    trial.check(Committed.Nothing.mustFlushBehind(share) == false, "nothing is flushed")
  }
}
