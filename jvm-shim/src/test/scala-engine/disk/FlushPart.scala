package org.apache.spark.sql.millpond.disk

import java.io.File

import org.apache.spark.sql.millpond.base.{Json, MillpondError, MillpondException, Op}
import org.apache.spark.sql.millpond.changelog.{
  Change, ChangelogReader, ChangelogWriter, Codec, PendingChangelog
}
import org.apache.spark.sql.millpond.rows.RowFilter
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Compares flushes with a plain map. Changelogs have puts, deletes, appends and repeated keys.
  * Some are of batches that spilled, some have unwanted rows, some were replaced by another
  * attempt. A flush fails at every call that may fail, and runs again. */
object FlushPart extends Part {
  override val name = "flush"
  override def fault(point: String): Option[Throwable] =
    if (!point.startsWith("flush.") && point != "disk.sst") None
    else Some(MillpondError.of("LOCAL_DISK_FULL", s"a fault of the test at $point."))
  override def failuresEvery: Int = 4
  /** Whether each row gets a file of its own. */
  var ofOneRow = false
  override def stretch(what: String, usual: Long): Long =
    if (what == "sst.bytes" && ofOneRow) 1L else usual

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    ofOneRow = trial.seed % 7 == 2
    val store = new FlushedStore(trial, dir)
    try (1 to trial.random.between(1, 4)).foreach(_ => store.step())
    finally store.close()
  }
}

private final class FlushedStore(trial: Trial, dir: File) {
  import trial.{chance, check, equal, random}

  private val keys = Vector.tabulate(random.between(1, 30)) { i =>
    "\u0000\u0001\u0000\u0002" + "\u0007" * (i % 7) + i.toChar
  }
  private val mostBytes = if (chance(40)) 1L else 1L << 20 // a file for each block, or one for all
  private val codec = if (random.nextBoolean()) Codec.None else Codec.Zstd
  private var loads = 0
  private var tier: DiskTier = null
  private var working = Change.Nothing // the rows of the tier after all pending changelogs
  private var pending = Vector.empty[PendingChangelog]
  private var files = 0
  // A load from storage begins with a snapshot and all later changelogs.
  private var snapshot = Change.Nothing
  private var since = Vector.empty[(Seq[Change], RowFilter)]
  private var taken = 0L // files, into the tier
  trial.beside = point => if (point == "flush.ingest") taken += 1
  openAnew()

  private def openAnew(): Unit = {
    close()
    loads += 1
    tier = Scratch.tier(new File(dir, s"db-$loads"))
  }
  def close(): Unit = { if (tier != null) tier.close(); tier = null }

  def step(): Unit = {
    (1 to random.between(1, 4)).foreach(_ => if (chance(20)) spilledBatch() else batch())
    if (chance(5)) replaced()
    settle()
    if (chance(60)) { snapshot = working; since = Vector.empty }
    if (chance(10)) { trial.step("close"); tier.close(); tier = Scratch.tier(tier.dir) }
  }

  private def batch(): Unit = {
    val even: RowFilter = (key, at, length) => key(at + length - 1) % 2 == 0
    val filter = if (chance(20)) even else null
    val changes = Seq.fill(random.nextInt(40))(change())
    pending :+= write(changes, filter)._1
    since :+= changes -> filter
    val wanted = changes.filter(c => filter == null || c.key.last % 2 == 0)
    working = wanted.foldLeft(working)((s, c) => c.applied(s))
  }

  /** Flushes a batch's writes before its commit, as whole values. Its changelog begins with the
    * same records. */
  private def spilledBatch(): Unit = {
    settle()
    val before = working
    val spilled = Seq.fill(random.between(1, 3))(Seq.fill(random.nextInt(30))(change()).map { c =>
      working = c.applied(working)
      working.get(c.key).fold(Change(Op.Delete, c.key, None))(v => Change(Op.Put, c.key, Some(v)))
    })
    val segments = spilled.map(write(_, null)._1)
    trial.step(s"spill ${segments.size} segments")
    val done =
      try { new Flush(tier, dir, mostBytes).run(segments); true }
      catch { case _: MillpondException if trial.hasFailed => false }
    if (done) {
      val rest = Seq.fill(random.nextInt(30))(change())
      val (c, spilledBlocks) = write(rest, null, segments)
      working = rest.foldLeft(working)((s, c) => c.applied(s))
      c.flushedBlocks = spilledBlocks
      pending :+= c
      since :+= (spilled.flatten ++ rest) -> null
    } else { // the batch is lost, and so is the tier
      working = before
      load()
    }
  }

  /** Checks that a flush takes in nothing of a replaced file. */
  private def replaced(): Unit = {
    trial.step("a replaced file")
    val other = write(Seq.fill(random.nextInt(10))(change()), null)._1
    try {
      new Flush(tier, dir, mostBytes).run(Seq(other.copy(id = "another")))
      throw new AssertionError("a replaced file was taken in")
    } catch {
      case e: MillpondException =>
        check(e.kind == "CHANGELOG_REPLACED" || trial.hasFailed, s"the error is $e")
    }
  }

  private def settle(): Unit = {
    trial.step(s"flush ${pending.map(p => s"${p.version} from ${p.flushedBlocks}")}")
    val flush = new Flush(tier, dir, mostBytes)
    try {
      taken = 0L
      val written = flush.run(pending)
      if (FlushPart.ofOneRow) equal(taken, written, "the number of files")
      check(pending.forall(_.isFlushed), "a changelog is not wholly in the tier")
      equal(new Flush(tier, dir, mostBytes).run(pending), 0L, "what a second flush writes")
      pending = Vector.empty
      verify()
    } catch {
      case e: MillpondException if trial.hasFailed =>
        equal(e.kind, "LOCAL_DISK_FULL", "the error")
        trial.step(s"failed${if (flush.isUncertain) ", nobody knows how far" else ""}")
        noFiles()
        if (flush.isUncertain) load()
        else if (chance(30)) { trial.step("close"); tier.close(); tier = Scratch.tier(tier.dir) }
        if (chance(30)) batch()
        settle()
    }
  }

  /** Loads like a store whose tier may be wrong. */
  private def load(): Unit = {
    trial.step("load")
    openAnew()
    val rows = snapshot.toSeq.map { case (k, v) => Change(Op.Put, k, Some(v)) }
    pending = ((rows, null) +: since).map { case (changes, filter) => write(changes, filter)._1 }
  }

  private def change(): Change = {
    val key = keys(random.nextInt(keys.size))
    val op = Seq(Op.Put, Op.Merge, Op.Merge, Op.Delete)(random.nextInt(4))
    val length = if (chance(2)) random.nextInt(9000) else random.nextInt(20)
    Change(op, key, if (op == Op.Delete) None else Some(Change.some(trial, length)))
  }

  /** Writes a changelog. Returns it, and the number of blocks that the segments fill. */
  private def write(changes: Seq[Change], filter: RowFilter,
      segments: Seq[PendingChangelog] = Nil): (PendingChangelog, Int) = {
    files += 1
    val file = new File(dir, s"changelog-$files")
    val header = Json.obj().put("id", s"id $files")
    val writer = new ChangelogWriter(file, header, codec, repeats = true)
    segments.foreach(s => new ChangelogReader(s.path).read(writer.copy(_, _, _, _, _, _)))
    val blocks = writer.endBlock()
    changes.foreach { c => c.write(writer); if (chance(10)) writer.endBlock(): Unit }
    writer.finish(): Unit
    trial.step(s"${file.getName}: ${changes.mkString(", ")}")
    (PendingChangelog(files.toLong, s"id $files", file.getPath, 0L, filter), blocks)
  }

  private def noFiles(): Unit = {
    val left = dir.list.filter(_.endsWith(".sst"))
    check(left.isEmpty, s"files were left behind: ${left.mkString(", ")}")
  }

  private def verify(): Unit = {
    val rows = tier.iterator(readAhead = chance(50))
    rows.seekToFirst()
    working.foreach { case (k, v) =>
      check(rows.isValid, s"the tier has nothing at ${Change.hex(k)} and behind")
      equal(Change.hex(Change.text(rows.key)), Change.hex(k), "a key of the tier")
      equal(Change.text(rows.value), v, s"the value of ${Change.hex(k)}")
      rows.next()
    }
    check(!rows.isValid, "the tier has more than the rows")
    rows.close()
    keys.foreach { k =>
      val n = tier.get(Change.bytes(k), k.length)
      equal(if (n < 0) None else Some(Change.text(tier.lastValue, 0, n)), working.get(k),
        s"the value of ${Change.hex(k)}")
    }
    noFiles()
  }
}
