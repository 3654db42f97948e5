package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.file.Files

import scala.collection.mutable

import org.apache.spark.sql.millpond.base.{Json, MillpondException, Op}
import org.apache.spark.sql.millpond.changelog.{Change, ChangelogWriter, Codec, PendingChangelog}
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Compares a disk tier with a plain map. After a rescale, `Composer` puts the tier together from
  * old partitions. The part reads while rows still lie in sources, while iterators are open, and
  * after the tier took in those rows and the partitions' changelogs. */
object ComposedPart extends Part {
  override val name = "composed"
  override def fault(point: String): Option[Throwable] = Trial.diskFull(point)
  override def failuresEvery: Int = 4
  /** Whether each row that is copied gets a file of its own. */
  var ofOneRow = false
  override def stretch(what: String, usual: Long): Long =
    if (what == "sst.bytes" && ofOneRow) 1L else usual

  override def run(trial: Trial): Unit = {
    ofOneRow = trial.seed % 7 == 2
    val dir = Scratch.folder("composed")
    try new Composition(trial, dir).run()
    finally Scratch.delete(dir)
  }
}

/** @param trailing whether keys lie in the reserved slot, and end with their own slot */
private final case class Rows(id: Int, kind: String, trailing: Boolean) {
  def key(slot: Int, tail: String): String =
    if (trailing) Rows.two(0xFFFF) + Rows.two(id) + tail + Rows.two(slot)
    else Rows.two(slot) + Rows.two(id) + tail
}

private object Rows {
  def two(n: Int): String = Change.text(Array((n >>> 8).toByte, n.toByte))
}

private final class Composition(trial: Trial, dir: File) {
  import trial.{chance, check, equal, random}

  private val slots = if (chance(30)) 0x10000 else 1 << random.between(2, 8)
  private val ids = random.shuffle((0 to 20).toList ++ List(0xFF, 0x100, 0xFFFE)).take(4)
  private val kinds =
    Seq("point" -> false, "range" -> true, "time-last" -> false, "time-first" -> true)
  private val families = ids.zip(kinds).take(random.between(1, 5))
    .map { case (id, (kind, trailing)) => Rows(id, kind, trailing) }
  private val partitions = random.between(1, 5)

  /** A run of slots of the old partition `old`. */
  private final case class Run(from: Int, until: Int, old: Int, wanted: Boolean)
  private val cuts = Seq.fill(random.between(1, 10))(random.nextInt(slots)).sorted
  private val runs = (0 +: cuts :+ slots).distinct.sliding(2).collect { case Seq(a, b) =>
    Run(a, b, random.nextInt(partitions), chance(60))
  }.toVector
  private def runOf(slot: Int): Run = runs.find(r => r.from <= slot && slot < r.until).get

  private val states = Array.fill(partitions)(Change.Nothing)
  private val changes = Array.fill(partitions)(Vector.empty[Change])
  private def atABorder: Int = {
    val run = runs(random.nextInt(runs.size))
    if (chance(50)) run.from else run.until - 1
  }
  private val slotsUsed =
    Vector.fill(random.between(1, 12))(if (chance(60)) atABorder else random.nextInt(slots))
  private def someRow(): (Int, String) = {
    val slot = slotsUsed(random.nextInt(slotsUsed.size))
    slot -> families(random.nextInt(families.size)).key(slot, Change.some(trial, random.nextInt(3)))
  }
  (1 to random.nextInt(60)).foreach { _ =>
    val (slot, key) = someRow()
    val p = runOf(slot).old
    states(p) = states(p).updated(key, Change.some(trial, random.nextInt(30)))
  }
  (1 to random.nextInt(30)).foreach { _ =>
    val (slot, key) = someRow()
    val op = Seq(Op.Put, Op.Merge, Op.Delete)(random.nextInt(3))
    val value = if (op == Op.Delete) None else Some(Change.some(trial, random.nextInt(20)))
    changes(runOf(slot).old) :+= Change(op, key, value)
  }
  private val sources =
    (0 until partitions).filter(p => chance(85) && runs.exists(r => r.old == p && r.wanted))

  private def slotOf(key: String): Int = {
    val id = key.charAt(2) << 8 | key.charAt(3)
    val at = if (families.find(_.id == id).get.trailing) key.length - 2 else 0
    key.charAt(at) << 8 | key.charAt(at + 1)
  }
  private def wanted(key: String): Boolean = runOf(slotOf(key)).wanted
  /** The rows of the sources that the store must have, without the changelogs. */
  private val base =
    Change.Nothing ++ sources.flatMap(states(_)).filter { case (k, _) => wanted(k) }
  /** How many rows are copied: those of all sources but the largest, which becomes the tier. */
  private def copied: Int = sources.map(p => states(p).keys.count(wanted)).sum -
    sources.maxByOption(states(_).size).fold(0)(p => states(p).keys.count(wanted))

  private val keys = (states.flatMap(_.keys) ++ changes.flatten.map(_.key)).distinct.toVector

  private val workDir = new File(dir, "work")
  private var tier: DiskTier = null
  private var state = base
  private val open = mutable.ArrayBuffer.empty[(DiskScan, Iterator[(String, String)])]
  private var layout = 0

  /** Thrown after a failure that may leave work half done. All begins anew, like a new load. */
  private final class Anew extends RuntimeException

  def run(): Unit = {
    trial.step(s"runs $runs, sources $sources, families $families")
    workDir.mkdirs(): Unit
    sources.foreach(layDown)
    var done = false
    while (!done)
      try { compose(); done = true }
      catch { case _: Anew => trial.step("anew") }
      finally { closeWalks(); if (tier != null) tier.close(); tier = null }
    val left = Scratch.opened(dir)
    check(left.isEmpty, s"left open: ${left.mkString(", ")}")
    val folders = new File(dir, s"layout-$layout").list.filterNot(_ == "db").toSeq
    equal(folders, Seq.empty[String], "the folders of sources that are left")
  }

  private def original(partition: Int): File = new File(dir, s"partition-$partition")

  /** Writes the database of an old partition, in one or two files. */
  private def layDown(partition: Int): Unit = Trial.unheard {
    val old = Scratch.tier(original(partition))
    val rows = states(partition).toSeq
    rows.grouped(math.max(1, rows.size / 2 + 1)).filter(_.nonEmpty).foreach { some =>
      val file = new File(dir, "rows")
      val writer = old.sstWriter(file)
      some.foreach { case (k, v) =>
        writer.put(Change.bytes(k), 0, k.length, Change.bytes(v), 0, v.length)
      }
      writer.finish()
      old.ingest(file)
    }
    old.close()
  }

  private def compose(): Unit = {
    layout += 1
    val here = new File(dir, s"layout-$layout")
    val described = Json.obj().put("dir", new File(here, "db").getPath).put("version", 1L)
    val listed = described.putArray("column_families")
    families.foreach(f =>
      listed.addObject().put("id", f.id).put("name", s"f${f.id}").put("kind", f.kind))
    val from = described.putArray("sources")
    def slots(into: com.fasterxml.jackson.databind.node.ArrayNode, partition: Int): Unit =
      runs.filter(r => r.old == partition && r.wanted).foreach(r =>
        into.addArray().add(r.from).add(r.until))
    sources.foreach { p =>
      val copy = new File(here, s"source-$p")
      copy.mkdirs(): Unit
      original(p).listFiles.foreach(f => Files.copy(f.toPath, new File(copy, f.getName).toPath))
      val source = from.addObject().put("dir", copy.getPath).put("bytes", states(p).size.toLong)
      slots(source.putArray("slots"), p)
    }
    val logs = described.putArray("changelogs")
    def isWanted(p: Int): Boolean = runs.exists(r => r.old == p && r.wanted)
    (0 until partitions).filter(p => changes(p).nonEmpty && isWanted(p)).foreach { p =>
      val file = new File(dir, s"changelog-$p")
      if (!file.exists) Trial.unheard {
        val header = Json.obj().put("id", s"id $p")
        val writer = new ChangelogWriter(file, header, Codec.None, repeats = true)
        changes(p).foreach { c => c.write(writer); if (chance(5)) writer.endBlock(): Unit }
        writer.finish(): Unit
      }
      slots(logs.addObject().put("id", s"id $p").put("path", file.getPath).putArray("slots"), p)
    }
    state = base
    failing("compose") {
      Composer.compose(described, Scratch.config) { (disk, at) =>
        tier = disk
        equal(at, new File(here, "db"), "the folder of the tier")
      }
      true
    }
    verify()
    val reads = random.nextInt(6)
    (1 to reads).foreach(_ => read())
    settle()
    (1 to reads).foreach(_ => read())
    if (chance(30)) { failing("compact")({ tier.compact(); true }); verify() }
    flush(Composer.changelogs(described))
    (1 to reads).foreach(_ => read())
    verify()
  }

  private def failing(what: String)(work: => Boolean): Unit = {
    trial.step(what)
    val done =
      try work
      catch {
        case e: MillpondException if trial.hasFailed =>
          equal(e.kind, "LOCAL_DISK_FULL", "the error")
          false
      }
    if (!done) throw new Anew
  }

  /** Does `Composer.settle`. If it fails, does it again. No reader sees the failure. */
  private def settle(): Unit = {
    trial.step("settle")
    var copies = 0
    trial.beside =
      point => if (point == "disk.ingest") copies = math.max(copies, workDir.list.length)
    try Composer.settle(tier, workDir)(work => work())
    catch {
      case e: MillpondException if trial.hasFailed =>
        equal(e.kind, "LOCAL_DISK_FULL", "the error")
        equal(workDir.list.toSeq, Seq.empty[String], "the files that a failure left")
        trial.step("  again")
        verify()
        if (chance(50)) read()
        Composer.settle(tier, workDir)(work => work())
    }
    trial.beside = Trial.nothing
    if (ComposedPart.ofOneRow) equal(copies, copied, "the number of files")
    check(!tier.hasSources, "there are still sources")
    equal(workDir.list.toSeq, Seq.empty[String], "the files that are left")
    verify()
    if (chance(50)) { closeWalks(); tier.closeEmptied() }
  }

  private def flush(changelogs: Seq[PendingChangelog]): Unit = {
    failing("flush") {
      val flush = new Flush(tier, workDir, if (chance(50)) 1L else 1L << 20)
      try { flush.run(changelogs): Unit; true }
      catch {
        case e: MillpondException if trial.hasFailed && !flush.isUncertain =>
          trial.step(s"  again after ${e.kind}")
          new Flush(tier, workDir, 1L << 20).run(changelogs): Unit
          true
      }
    }
    val taken = changelogs.map(_.id.drop(3).toInt).flatMap(changes(_)).filter(c => wanted(c.key))
    state = taken.foldLeft(state)((s, c) => c.applied(s))
    equal(workDir.list.toSeq, Seq.empty[String], "the files that are left")
  }

  private def verify(): Unit = {
    keys.foreach { k =>
      val n = tier.get(Change.bytes(k + "x"), k.length)
      equal(if (n < 0) None else Some(Change.text(tier.lastValue, 0, n)), state.get(k),
        s"the value of ${Change.hex(k)}")
    }
    val (scan, rows) = walk()
    go(scan, rows, Int.MaxValue)
  }

  private def read(): Unit = random.nextInt(3) match {
    case 0 => if (open.size < 3) open += walk()
    case 1 =>
      if (open.nonEmpty) {
        val (scan, rows) = open(random.nextInt(open.size))
        go(scan, rows, random.nextInt(8))
      }
    case _ => closeWalks()
  }

  private def walk(): (DiskScan, Iterator[(String, String)]) = {
    val scan = tier.iterator(readAhead = chance(50))
    val from =
      if (chance(50) || keys.isEmpty) ""
      else if (chance(50)) keys(random.nextInt(keys.size))
      else Rows.two(random.nextInt(slots)) + Rows.two(ids.head)
    if (from.isEmpty) scan.seekToFirst() else scan.seek(Change.bytes(from))
    (scan, state.rangeFrom(from).iterator)
  }

  private def go(scan: DiskScan, rows: Iterator[(String, String)], most: Int): Unit = {
    var left = most
    while (left > 0 && rows.hasNext) {
      val (k, v) = rows.next()
      check(scan.isValid, s"an iterator ends before ${Change.hex(k)}")
      equal(Change.hex(Change.text(scan.key)), Change.hex(k), "the key of an iterator")
      equal(Change.text(scan.value), v, "the value of an iterator")
      scan.next()
      left -= 1
    }
    if (!rows.hasNext) {
      check(!scan.isValid, "an iterator has more than the rows")
      scan.close()
      open.filterInPlace(_._1 ne scan): Unit
    }
  }

  private def closeWalks(): Unit = { open.foreach(_._1.close()); open.clear() }
}
