package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.ByteBuffer

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.rocksdb.{Options, SstFileReader}

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.changelog.Change
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Compares a disk tier with a plain map. It does sorted files, deletes, open iterators,
  * compactions, RocksDB checkpoints and closes. */
object DiskTierPart extends Part {
  override val name = "disk-tier"
  override def fault(point: String): Option[Throwable] = Trial.diskFull(point)
  override def failuresEvery: Int = 4
  override def stretch(what: String, usual: Long): Long = if (what == "disk.passes") 0L else usual

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val store = new TierStore(trial, dir)
    try (1 to trial.random.between(4, 20)).foreach(_ => store.step())
    finally store.close()
    if (trial.seed == 0 && trial.failAt == 0) new OldTier(trial, dir).run()
  }
}

/** A tier that has seen many files come and go. A snapshot of it is no larger for that. */
private final class OldTier(trial: Trial, dir: File) {
  private val tier = Scratch.tier(new File(dir, "old"))
  private val prefix = "\u0000\u0001" + "k" * (64 << 10) // a manifest has the keys at both ends

  def run(): Unit = Trial.unheard {
    try {
      (0 until 64).foreach { n =>
        val file = new File(dir, s"old-$n")
        val writer = tier.sstWriter(file)
        val key = Change.bytes(f"$prefix$n%05d")
        writer.put(key, 0, key.length, key, 0, 1)
        writer.finish()
        tier.ingest(file)
        if (n % 4 == 3) tier.compact()
      }
      val target = new File(dir, "old-snapshot")
      tier.snapshotTo(target)
      val manifest = target.listFiles.filter(_.getName.startsWith("MANIFEST-")).map(_.length).sum
      trial.check(manifest < (2L << 20), s"RocksDB's manifest has $manifest bytes")
      val other = Scratch.readOnly(target)
      val rows = other.iterator(readAhead = true)
      rows.seekToFirst()
      var count = 0
      while (rows.isValid) { count += 1; rows.next() }
      trial.equal(count, 64, "the number of rows in the snapshot")
      rows.close()
      other.close()
      Scratch.delete(target)
    } finally tier.close()
  }
}

private final class TierStore(trial: Trial, dir: File) {
  import trial.{chance, check, equal, random}

  private val db = new File(dir, "db")
  // with little room a key filter takes the place of what tells where each key is
  private val budget = new MemoryBudget(if (chance(70)) 1L << 20 else 1L << random.between(6, 12))
  private val keys = Vector.fill(random.between(1, 30)) {
    "\u0000" + random.nextInt(4).toChar + Change.some(trial, random.nextInt(6))
  }.distinct
  private var state = Change.Nothing
  private var files = 0
  private val open = mutable.ArrayBuffer.empty[Walk]
  private var isScanned = false // for a lookup, perhaps
  private var tier: DiskTier = again("open")(Scratch.tier(db))
  check(tier.isEmpty, "a new tier is not empty")

  private def someKey: String = keys(random.nextInt(keys.size))

  /** Does the work, and once more if it fails. A failed call must leave nothing in the way. */
  private def again[T](what: String)(work: => T): T = {
    trial.step(what)
    try work
    catch {
      case e: MillpondException if trial.hasFailed =>
        equal(e.kind, "LOCAL_DISK_FULL", "the error")
        trial.step("  again")
        work
    }
  }

  def step(): Unit = {
    random.nextInt(106) match {
      case n if n < 40 => ingest()
      case n if n < 50 => deleteRanges()
      case n if n < 60 => deleteRows()
      case n if n < 65 => again("compact")(tier.compact())
      case n if n < 73 => snapshot()
      case n if n < 78 =>
        trial.step("close")
        closeWalks()
        tier.close()
        isScanned = false
        tier = again("open")(Scratch.tier(db))
      case n if n < 85 =>
        if (open.size < 3) {
          trial.step("an iterator")
          open += new Walk(tier.iterator(chance(50)), state)
        }
      case n if n < 90 => if (open.nonEmpty) open(random.nextInt(open.size)).go(random.nextInt(6))
      case n if n < 97 => lookup()
      case n if n < 103 => rest()
      case _ => closeWalks()
    }
    verify()
  }

  private def someLength: Int =
    if (chance(3)) random.nextInt(5000)
    else if (chance(5)) random.between(1020, 1030) // about the size of the tier's buffer
    else random.nextInt(30)

  private def ingest(): Unit = {
    val chosen = random.shuffle(keys).take(random.nextInt(8)).sorted
    val changes = chosen.map(_ -> (if (chance(35)) None else Some(Change.some(trial, someLength))))
    val file = new File(dir, s"file-$files")
    files += 1
    val listed = changes.map { case (k, v) => s"${Change.hex(k)} ${v.fold(-1)(_.length)}" }
    if (again(s"a file of $listed")(write(file, changes))) {
      var taken = false
      try { trial.step("take it in"); tier.ingest(file); taken = true }
      catch {
        case e: MillpondException if trial.hasFailed =>
          equal(e.kind, "LOCAL_DISK_FULL", "the error")
          taken = !file.exists // the tier moves the file when it takes it in
          if (chance(50) && !taken) { trial.step("  again"); tier.ingest(file); taken = true }
      }
      if (taken)
        state = changes.foldLeft(state) { case (s, (k, v)) => v.fold(s - k)(s.updated(k, _)) }
      file.delete(): Unit
    }
    check(!file.exists, "a file is left")
  }

  /** Returns false if it leaves no file. */
  private def write(file: File, changes: Seq[(String, Option[String])]): Boolean = {
    val keyBytes = changes.map(_._1.length).sum.toLong
    val flushed = chance(50)
    val writer =
      if (flushed) tier.sstWriter(file, changes.size.toLong, keyBytes, 2 * keyBytes)
      else tier.sstWriter(file)
    var done = false
    try {
      changes.foreach { case (k, v) =>
        val bytes = Change.bytes("xx" + k + v.getOrElse("") + "yy")
        v.fold(writer.delete(bytes, 2, k.length))(v =>
          writer.put(bytes, 2, k.length, bytes, 2 + k.length, v.length))
      }
      equal(writer.entries, changes.size.toLong, "the number of entries")
      if (chance(5) && changes.size > 1) {
        val first = Change.bytes(changes.head._1)
        try {
          writer.put(first, 0, first.length, first, 0, 0)
          throw new AssertionError("a sorted file takes keys in any order")
        } catch { case _: MillpondException => trial.step("out of order"); return false }
      }
      if (changes.nonEmpty && !chance(5)) { writer.finish(); done = true }
    } finally if (!done) { writer.abandon(); check(!file.exists, "an abandoned file is left") }
    if (done) {
      val bytes = DiskTier.indexBytes(changes.size.toLong, keyBytes, 2 * keyBytes)
      val whole = flushed && bytes <= Scratch.MostWhole
      equal(isWhole(file), whole, "whether its index is one block")
    }
    done
  }

  private def isWhole(file: File): Boolean = {
    val options = new Options
    val reader = new SstFileReader(options)
    try { reader.open(file.getPath); reader.getTableProperties.getTopLevelIndexSize == 0L }
    finally { reader.close(); options.close() }
  }

  private def deleteRanges(): Unit = {
    val ranges = Seq.fill(random.nextInt(3))(
      Seq(someKey, someKey + (if (chance(50)) "" else "\u0001")).sorted)
    again(s"delete the ranges ${ranges.map(_.map(Change.hex))}")(
      tier.deleteRanges(ranges.map(r => Change.bytes(r.head) -> Change.bytes(r.last))))
    state = state.filterNot { case (k, _) => ranges.exists(r => k >= r.head && k < r.last) }
  }

  /** Deletes rows while a scan still finds them, like `Clip`. */
  private def deleteRows(): Unit = {
    val bit = random.nextInt(2)
    def unwanted(k: String): Boolean = (k.last & 1) == bit
    again(s"delete the rows that end with $bit") {
      val rows = tier.iterator(readAhead = true)
      rows.seekToFirst()
      def next(): Array[Byte] = {
        val key = if (rows.isValid) rows.key else null
        if (key != null) rows.next()
        key
      }
      val found = Iterator.continually(next()).takeWhile(_ != null)
      try tier.deleteRows(found.filter(k => unwanted(Change.text(k))))
      finally rows.close()
    }
    state = state.filterNot { case (k, _) => unwanted(k) }
  }

  private def snapshot(): Unit = {
    val target = new File(dir, "snapshot")
    if (chance(30)) changeMeanwhile(random.between(1, 4))
    val described = again("snapshot") {
      check(!target.exists, "a failed snapshot has left its folder")
      tier.snapshotTo(target)
    }
    trial.beside = Trial.nothing
    equal(described.elements.asScala.map(_.get("name").asText).toSeq,
      target.list.filter(_.endsWith(".sst")).sorted.toSeq, "the files of a snapshot")
    val ranges = described.elements.asScala.map { f =>
      equal(f.get("size_bytes").asLong, new File(target, f.get("name").asText).length,
        "the size of a file")
      (f.get("smallest_hex").asText, f.get("largest_hex").asText,
        f.get("entries").asLong - f.get("deletions").asLong)
    }.toSeq
    state.keys.map(Change.hex).foreach { k =>
      val held = ranges.exists { case (low, high, _) => low <= k && k <= high }
      check(held, s"no file of the snapshot has $k")
    }
    check(ranges.map(_._3).sum >= state.size,
      "the files of the snapshot have fewer rows than the tier")
    val other = again("open the snapshot")(Scratch.readOnly(target))
    val rows = new Walk(other.iterator(readAhead = chance(50)), state)
    rows.go(Int.MaxValue)
    other.close()
    Scratch.delete(target)
  }

  /** Files come and are compacted so many times while a snapshot looks for its files. */
  private def changeMeanwhile(times: Int): Unit = {
    var left = times
    trial.beside = point =>
      if (left > 0 && (point == "disk.snapshot" || point == "disk.listed")) {
        left -= 1
        Trial.unheard { ingest(); if (chance(70)) tier.compact() }
      }
  }

  /** Begins what helps reads, goes on with it, or gives it up. Files come in between. */
  private def lookup(): Unit =
    if (tier.lookup.isWanted) {
      trial.step("a lookup")
      isScanned = true
      tier.lookup.begin(budget)
    } else if (chance(10)) { trial.step("no lookup"); tier.lookup.end(); isScanned = false }
    else {
      trial.step("some keys for the lookup")
      if (!tier.lookup.step(random.nextInt(8))) isScanned = tier.lookup.keep()
    }

  /** Maintenance finds that nobody uses the tier, or that somebody does. */
  private def rest(): Unit = {
    trial.step("rest")
    val (keys, isEmpty) = (tier.estimatedKeys, tier.isEmpty)
    if (isScanned || open.nonEmpty) tier.rest() else Scratch.rest(trial, tier)
    equal(tier.estimatedKeys, keys, "the estimate of keys after a rest")
    equal(tier.isEmpty, isEmpty, "whether it is empty after a rest")
    again("end the rest")(tier.read(Change.bytes(someKey))): Unit
  }

  private def verify(): Unit = {
    equal(budget.usedBytes, tier.lookup.usedBytes, "the memory of lookups")
    keys.foreach { k =>
      val key = Change.bytes(k + "more")
      check(!state.contains(k) || !tier.lookup.lacks(key, k.length),
        s"the lookup denies ${Change.hex(k)}")
      val n = tier.get(key, k.length)
      val found = if (n < 0) null else Change.text(tier.lastValue, 0, n)
      val wanted = state.getOrElse(k, null)
      if (found != wanted) equal(found, wanted, s"the value of ${Change.hex(k)}")
    }
    val k = someKey
    equal(Option(tier.read(Change.bytes(k))).map(Change.text(_)), state.get(k),
      s"the value of ${Change.hex(k)}, read by a flush")
    new Walk(tier.iterator(chance(30)), state).go(Int.MaxValue)
    if (tier.isEmpty) equal(state, Change.Nothing, "what an empty tier holds")
    check(state.isEmpty || tier.estimatedKeys >= 0, "the estimate of keys is negative")
    DiskTier.checkFolder(db)
  }

  private def closeWalks(): Unit = { open.foreach(_.close()); open.clear() }
  def close(): Unit = { closeWalks(); tier.close() }

  /** An iterator, and the rows that it must yield: those that were there when it began. */
  private final class Walk(scan: DiskScan, state: Change.State) {
    private val from = if (chance(50)) "" else someKey + (if (chance(50)) "" else "\u0000")
    private var rest = state.rangeFrom(from).toList
    private val buffer = ByteBuffer.allocateDirect(random.nextInt(40))
    if (from.isEmpty && chance(50)) scan.seekToFirst() else scan.seek(Change.bytes(from))

    def go(steps: Int): Unit = {
      var left = steps
      while (left > 0) {
        check(
          scan.isValid == rest.nonEmpty,
          if (scan.isValid) s"an iterator has ${Change.hex(Change.text(scan.key))} behind its end"
          else s"an iterator ends before ${Change.hex(rest.head._1)}"
        )
        if (rest.isEmpty) { scan.close(); open -= this; left = 0 }
        else {
          val (k, v) = rest.head
          equal(Change.text(scan.key), k, "the key of an iterator")
          equal(Change.text(scan.value), v, "the value of an iterator")
          buffered(k, scan.keyInto)
          buffered(v, scan.valueInto)
          rest = rest.tail
          scan.next()
          left -= 1
        }
      }
    }

    private def buffered(wanted: String, into: ByteBuffer => Int): Unit = {
      buffer.clear()
      equal(into(buffer), wanted.length, "the length of what goes into a buffer")
      val bytes = new Array[Byte](buffer.remaining)
      buffer.get(bytes)
      equal(Change.text(bytes), wanted.take(buffer.capacity), "what goes into a buffer")
    }

    def close(): Unit = scan.close()
  }
}
