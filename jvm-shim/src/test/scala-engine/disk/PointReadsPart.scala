package org.apache.spark.sql.millpond.disk

import java.io.{File, RandomAccessFile}

import org.rocksdb.{
  BlockBasedTableConfig, ChecksumType, CompressionType, EnvOptions, Options, SstFileWriter
}

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.changelog.Change
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Looks keys up in a disk tier of many blocks and files, without RocksDB, and compares what it
  * finds with a plain map. Then it damages a file: a look-up tells the truth or fails. Where files
  * may not be mapped, none is. Then a file has an entry that is no row's. At last replaced files
  * have tables for whose successors there is no room. */
object PointReadsPart extends Part {
  override val name = "point-reads"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)
  override def failuresEvery: Int = 4
  // of a file that is not read here
  var mostBytes: Long = Int.MaxValue.toLong
  override def stretch(what: String, usual: Long): Long = what match {
    case "disk.passes" => 0L
    case "points.blocks" => 20L // files of more blocks have larger entries
    case "disk.slow" => if (usual % 2 == 0) -1L else Long.MaxValue // reads of some lengths are
    case "points.file" => mostBytes
    case _ => usual
  }

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val tier = new ReadTier(trial, dir)
    try {
      (1 to trial.random.between(3, 14)).foreach(_ => tier.step())
      tier.lookUp()
      tier.verify()
      if (trial.chance(60)) tier.damage()
    } finally tier.close()
    mostBytes = Int.MaxValue.toLong
    if (trial.chance(30)) new StrangeTier(trial, dir, tier.budget).run()
    if (trial.chance(30)) new GrownTier(trial, dir, tier.budget).run()
    trial.equal(tier.budget.usedBytes, 0L, "memory after the end")
  }
}

private final class ReadTier(trial: Trial, dir: File) {
  import trial.{chance, check, equal, random}

  private val compression = random.nextInt(5) match {
    case 0 => CompressionType.NO_COMPRESSION
    case 1 => CompressionType.ZSTD_COMPRESSION
    case _ => CompressionType.LZ4_COMPRESSION
  }
  private val maps = chance(80) // not on YARN
  private val fileBytes = if (chance(50)) 8L << 10 else 1L << 30
  private val tier = new DiskTier(new File(dir, "db"),
    Scratch.config.copy(
      compression = compression,
      mostWhole = () => if (chance(50)) Long.MaxValue else 0L,
      maps = maps,
      fileBytes = fileBytes
    ))
  val budget = new MemoryBudget(ReadTier.BudgetBytes)
  private val keyCount = random.between(1, 2000)
  private val long = random.nextInt(300)
  private var state = Change.Nothing
  private var files = 0
  private var isStrange = false // it has a file of a kind that only RocksDB reads
  // most of these files are larger
  private val mostBytes =
    if (trial.seed % 8 == 1) random.between(500, 20000).toLong else Int.MaxValue.toLong
  PointReadsPart.mostBytes = mostBytes

  private def isForeign: Boolean = isStrange || ssts.exists(_.length > mostBytes)
  private def ssts: Seq[File] = tier.dir.listFiles.toSeq.filter(_.getName.endsWith(".sst"))

  private def key(n: Int): String =
    "\u0000\u0001" + f"$n%05d" + "x" * (if (n % 7 == 0) n % 200 else n % 5)

  def step(): Unit =
    if (chance(20)) { lookUp(); if (chance(30)) verify() }
    else if (chance(5)) {
      trial.step("rest")
      Scratch.rest(trial, tier)
      if (chance(50)) verify()
    } else change()

  private def change(): Unit = random.nextInt(80) match {
    case n if n < 55 => ingest()
    case n if n < 65 => trial.step("compact"); tier.compact(); isStrange = false
    case n if n < 72 =>
      val (from, until) = (key(random.nextInt(keyCount)), key(random.nextInt(keyCount)))
      if (from < until) {
        trial.step("delete a range")
        tier.deleteRanges(Seq(Change.bytes(from) -> Change.bytes(until)))
        state = state.filterNot { case (k, _) => k >= from && k < until }
        isStrange = true
      }
    case _ =>
      trial.step("delete rows")
      val gone = state.keys.filter(_ => chance(5)).toSeq
      tier.deleteRows(gone.iterator.map(Change.bytes))
      state = state -- gone
  }

  private def ingest(): Unit = {
    val share = random.nextInt(100)
    val changes = (0 until keyCount).filter(_ => chance(share)).map(key).sorted
      .map(_ -> (if (chance(15)) None else Some(Change.some(trial, someLength))))
    trial.step(s"a file of ${changes.size}")
    if (changes.nonEmpty) {
      val file = new File(dir, s"file-$files")
      files += 1
      val bytes = changes.map(c => (c._1.length + c._2.fold(0)(_.length)).toLong).sum
      // an earlier build had other check sums
      val isOld = chance(5)
      val (options, keyBytes) = (new Options, changes.map(_._1.length.toLong).sum)
      val writer = if (isOld) new SstWriter(options, file, tier.filter)
      else tier.sstWriter(file, changes.size.toLong, keyBytes, bytes)
      changes.foreach { case (k, v) =>
        val (name, value) = (Change.bytes(k), Change.bytes(v.getOrElse("")))
        if (v.isEmpty) writer.delete(name, 0, name.length)
        else writer.put(name, 0, name.length, value, 0, value.length)
      }
      writer.finish()
      options.close()
      takeIn(file)
      if (isOld) isStrange = true
      state = changes.foldLeft(state) { case (s, (k, v)) => v.fold(s - k)(s.updated(k, _)) }
    }
  }

  /** Sometimes nobody but RocksDB can open the file. */
  private def takeIn(file: File): Unit = {
    val hidden = new File(dir, "hidden")
    val hides = chance(5) && (trial.beside eq Trial.nothing)
    if (hides) {
      trial.step("the file cannot be opened")
      trial.beside = {
        case "points.prepare" => file.renameTo(hidden): Unit
        case "disk.ingest" => hidden.renameTo(file): Unit
        case _ =>
      }
    }
    try perhapsInterrupted(tier.ingest(file))
    finally if (hides) trial.beside = Trial.nothing
  }

  /** Does work, sometimes in a thread that is to end, as that of a task that was killed. */
  private def perhapsInterrupted(work: => Unit): Unit = {
    val ends = chance(10)
    if (ends) { trial.step("the thread is interrupted"); Thread.currentThread.interrupt() }
    try work
    finally equal(Thread.interrupted(), ends, "whether the thread is interrupted")
  }

  private def someLength: Int =
    if (chance(1)) random.nextInt(20000) else if (long == 0) 0 else random.nextInt(long)

  /** Files come while it is made, or it is given up. */
  def lookUp(): Unit = {
    tier.lookup.judge() // else it does not know that a compaction has ended
    if (tier.lookup.isWanted) {
      trial.step("a lookup")
      try perhapsInterrupted(tier.lookup.begin(budget))
      catch { case _: MillpondException if trial.hasFailed => tier.lookup.end() }
    }
    val gives = chance(10)
    while (tier.lookup.step(random.between(1, 2000)))
      if (chance(5)) { if (gives) tier.lookup.end() else ingest() }
    if (chance(30)) keepBeside()
    finish()
  }

  private def finish(): Unit = Scratch.finish(tier.lookup, random.between(1, 2000))

  /** The tables are kept just when a file comes. */
  private def keepBeside(): Unit = {
    trial.step("tables are kept beside a file")
    trial.beside = point => if (point == "points.prepare") tier.lookup.keep(): Unit
    try ingest()
    finally trial.beside = Trial.nothing
  }

  /** Tables that just have room are made, although those of replaced files may fill it. These serve
    * as long as they fit. */
  private def crowd(): Unit = {
    trial.step("a compaction where tables have little room")
    val old = tier.lookup.usedBytes
    // whose entries may be a third larger
    budget.limitTo(old * random.between(32, 60) / 15 + 64): Unit
    tier.compact()
    tier.lookup.judge()
    if (tier.lookup.isOutdated) {
      val most = budget.limitBytes * 3 / 4
      tier.lookup.begin(budget)
      check(tier.lookup.hasPlaces, "old tables go before anybody knows whether they must")
      while (tier.lookup.step(random.between(1, 2000))) ()
      val goesOn = tier.lookup.keep()
      check(tier.lookup.usedBytes <= most, "old tables stay beside new ones")
      if (goesOn) finish()
      val made = tier.lookup.usedBytes
      if (!trial.hasFailed) {
        check(tier.lookup.hasPlaces && !tier.lookup.isOutdated, "there are no tables")
        equal(goesOn, old + made > most, "whether old tables go first")
      }
    }
    budget.limitTo(ReadTier.BudgetBytes): Unit
  }

  def verify(): Unit = {
    val fits = fileBytes > (1L << 20) && mostBytes > (1L << 20) // a compaction makes one file
    if (fits && !isForeign && !trial.hasFailed && chance(30)) {
      tier.lookup.judge()
      if (tier.lookup.hasPlaces && !tier.lookup.isOutdated) crowd()
    }
    if (!isForeign && !trial.hasFailed && tier.lookup.isReady)
      check(tier.lookup.hasPlaces == maps, "a key filter stands in, or not")
    if (!maps) equal(Scratch.mapped(dir), Nil, "mapped files")
    val used = tier.lookup.usedBytes
    check(used <= budget.limitBytes * 3 / 4, "it takes too much memory")
    budget.limitTo(math.max(1L, used)): Unit
    val hadPlaces = tier.lookup.hasPlaces && used > 0L
    tier.lookup.judge()
    check(!tier.lookup.hasPlaces || used == 0L, "it does not give way")
    if (hadPlaces) equal(tier.lookup.usedBytes, 0L, "the memory of tables that gave way")
    budget.limitTo(ReadTier.BudgetBytes): Unit
    equal(budget.usedBytes, tier.lookup.usedBytes, "the memory of lookups")
    random.shuffle((0 until keyCount).toVector).foreach(n => verify(key(n)))
    (1 to 200).foreach(n => verify(key(n) + "none"))
    scan()
  }

  /** Scans from some keys on; sometimes the files become others while it is open. */
  private def scan(changes: Boolean = true): Unit = {
    val rows = tier.iterator(readAhead = true)
    val before = state
    try {
      var from = ""
      (1 to random.between(1, 6)).foreach { _ =>
        if (from.isEmpty && chance(50)) rows.seekToFirst() else rows.seek(Change.bytes(from))
        var left = if (chance(30)) Int.MaxValue else random.nextInt(300)
        val wanted = before.rangeFrom(from).iterator
        while (left > 0 && wanted.hasNext) {
          val (k, v) = wanted.next()
          check(rows.isValid, s"a scan ends before $k")
          val found = Change.text(rows.key)
          if (found != k) equal(found, k, "the key of a scan")
          val value = Change.text(rows.value)
          if (value != v) equal(Change.hex(value), Change.hex(v), s"the value of $k in a scan")
          rows.next()
          left -= 1
        }
        if (left > 0) check(!rows.isValid, "a scan does not end")
        if (changes && chance(20)) {
          trial.step("beside a scan")
          if (chance(30)) lookUp() else change()
        }
        from = key(random.nextInt(keyCount))
      }
    } finally rows.close()
  }

  private def verify(k: String): Unit = {
    val bytes = Change.bytes(k + "more")
    val found =
      if (tier.lookup.lacks(bytes, k.length)) -1 else tier.get(bytes, k.length)
    val wanted = state.getOrElse(k, null)
    val value = if (found < 0) null else Change.text(tier.lastValue, 0, found)
    if (value != wanted)
      equal(Option(value).map(Change.hex), Option(wanted).map(Change.hex), s"the value of $k")
  }

  /** Turn bits of a file, or cut it. */
  def damage(): Unit = {
    val all = ssts.filter(_.length > 0)
    if (all.nonEmpty && tier.lookup.hasPlaces) {
      val file = all(random.nextInt(all.length))
      val raw = new RandomAccessFile(file, "rw")
      try {
        if (chance(50)) {
          trial.step(s"cut ${file.getName}")
          raw.setLength(random.nextLong(raw.length))
        } else {
          trial.step(s"turn bits of ${file.getName}")
          (1 to random.between(1, 40)).foreach { _ =>
            val at = random.nextLong(raw.length)
            raw.seek(at)
            val byte = raw.read()
            raw.seek(at)
            raw.write(byte ^ (1 << random.nextInt(8)))
          }
        }
      } finally raw.close()
      (0 until keyCount).foreach { n =>
        try verify(key(n))
        catch { case e: MillpondException => equal(e.kind, "SST_DAMAGED", "the error") }
      }
      // a scan reads the file itself, and meets its end
      try scan(changes = false)
      catch {
        case e: MillpondException =>
          check(Set("SST_DAMAGED", "LOCAL_FILES_LOST")(e.kind), s"the error of a scan: $e")
      }
    }
  }

  def close(): Unit = tier.close()
}

private object ReadTier {
  val BudgetBytes: Long = 1L << 24
}

/** A tier with a file that has one entry of a kind that Millpond never writes: a merge. Neither a
  * single read nor a scan takes it for a value; both read all others. */
private final class StrangeTier(trial: Trial, dir: File, budget: MemoryBudget) {
  import trial.{chance, check, equal, random}

  private val keys = (0 until random.between(1, 3000)).map(n => f"\u0000\u0001$n%05d")
  private val merged = random.nextInt(keys.size)
  private val tier = new DiskTier(new File(dir, "strange"), Scratch.config)

  def run(): Unit =
    try {
      trial.step("a file with a merge")
      val comesLater = chance(50)
      if (!comesLater) ingest(keys.indices)
      else if (merged > 0) ingest(0 until merged)
      lookUp()
      if (comesLater) ingest(merged until keys.size)
      if (tier.lookup.hasPlaces) {
        keys.indices.filter(_ != merged).foreach(verify)
        refused(verify(merged))
        refused(scan(until = merged))
        overwrite()
      } else check(trial.hasFailed || merged == 0, "the files are not read")
    } finally tier.close()

  private def overwrite(): Unit = {
    val writer = tier.sstWriter(new File(dir, "newer"))
    val (key, value) = (Change.bytes(keys(merged)), Change.bytes(s"value $merged"))
    writer.put(key, 0, key.length, value, 0, value.length)
    writer.finish()
    tier.ingest(new File(dir, "newer"))
    if (tier.lookup.hasPlaces) { verify(merged); scan(until = keys.size) }
  }

  private def lookUp(): Unit = {
    tier.lookup.begin(budget)
    Scratch.finish(tier.lookup, random.between(1, 2000))
  }

  private def verify(n: Int): Unit = {
    val found = tier.get(Change.bytes(keys(n)), keys(n).length)
    equal(Change.text(tier.lastValue, 0, math.max(0, found)), s"value $n", s"the value of $n")
  }

  private def scan(until: Int): Unit = {
    val rows = tier.iterator(readAhead = true)
    try {
      rows.seekToFirst()
      (0 until until).foreach { n =>
        check(rows.isValid, s"a scan ends before $n")
        equal(Change.text(rows.value), s"value $n", s"the value of $n in a scan")
        rows.next()
      }
      check(!rows.isValid, "a scan does not end")
    } finally rows.close()
  }

  private def refused(work: => Unit): Unit = {
    val error =
      try { work; None }
      catch { case e: MillpondException => Some(e) }
    equal(error.map(_.kind), Some("SST_DAMAGED"), "the error")
    check(error.exists(_.getMessage.contains(": has an entry of kind 2")), s"reason: $error")
  }

  private def ingest(numbers: Range): Unit = {
    val file = new File(dir, s"strange-${numbers.head}")
    val options = new Options().setCompressionType(CompressionType.LZ4_COMPRESSION)
      .setTableFormatConfig(
        new BlockBasedTableConfig().setFormatVersion(5).setChecksumType(ChecksumType.kCRC32c))
    val env = new EnvOptions
    val writer = new SstFileWriter(env, options)
    try {
      writer.open(file.getPath)
      numbers.foreach { n =>
        val (key, value) = (Change.bytes(keys(n)), Change.bytes(s"value $n"))
        if (n == merged) writer.merge(key, value) else writer.put(key, value)
      }
      writer.finish()
    } finally { writer.close(); options.close(); env.close() }
    tier.ingest(file)
  }
}

/** A tier whose tables have room. Then a compaction replaces its files, and the tables of the new
  * ones would take more than tables may when they are made. The old ones do not stay for that. */
private final class GrownTier(trial: Trial, dir: File, budget: MemoryBudget) {
  import trial.{check, equal, random}

  private val keys = (0 until random.between(200, 1000)).map(n => f"\u0000\u0001$n%05d")
  private val tier = new DiskTier(new File(dir, "grown"), Scratch.config)

  def run(): Unit =
    try {
      trial.step("a state that has grown")
      ingest(_ % 20 != 3)
      renew()
      ingest(_ % 20 == 3)
      if (tier.lookup.hasPlaces) replaceFiles() else check(trial.hasFailed, "there are no tables")
      keys.indices.foreach(verify)
      budget.limitTo(ReadTier.BudgetBytes): Unit
      renew()
      check(trial.hasFailed || tier.lookup.hasPlaces, "tables do not come back")
      keys.indices.foreach(verify)
    } finally tier.close()

  private def replaceFiles(): Unit = {
    budget.limitTo(tier.lookup.usedBytes * 100 / random.between(66, 74)): Unit
    tier.compact()
    tier.lookup.judge()
    check(tier.lookup.hasPlaces && tier.lookup.isOutdated, "tables go before somebody looks")
    check(tier.lookup.isWanted, "nobody wants to replace the tables of replaced files")
    renew()
    equal(Scratch.replaced(dir), Nil, "the mappings of replaced files")
    check(!tier.lookup.hasPlaces, "new tables are larger than they may be")
    check(trial.hasFailed || tier.lookup.isReady, "no key filter stands in")
  }

  private def renew(): Unit = {
    tier.lookup.judge()
    if (tier.lookup.isWanted) {
      try tier.lookup.begin(budget)
      catch { case _: MillpondException if trial.hasFailed => tier.lookup.end() }
      Scratch.finish(tier.lookup, random.between(1, 2000))
    }
  }

  private def ingest(chosen: Int => Boolean): Unit = {
    val file = new File(dir, "grown-file")
    val writer = tier.sstWriter(file)
    keys.indices.filter(chosen).foreach { n =>
      val (key, value) = (Change.bytes(keys(n)), Change.bytes(s"value $n"))
      writer.put(key, 0, key.length, value, 0, value.length)
    }
    writer.finish()
    tier.ingest(file)
  }

  private def verify(n: Int): Unit = {
    val key = Change.bytes(keys(n))
    check(!tier.lookup.lacks(key, key.length), s"the key $n is denied")
    val found = tier.get(key, key.length)
    equal(Change.text(tier.lastValue, 0, math.max(0, found)), s"value $n", s"the value of $n")
  }
}
