package org.apache.spark.sql.millpond.disk

import java.io.File
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable

import org.rocksdb.{LiveFileMetaData, RocksDB}

import org.apache.spark.sql.millpond.base.Seams
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}

/** Finds the row of a key in the sorted files of a disk tier, without RocksDB: for each file a hash
  * table in memory tells the block. A search asks one file of each sorted run, from the newest to
  * the oldest: each file that came since is one, and so is each level below them. If there is no
  * room for the tables, or a file is not one that it reads, it stands aside.
  *
  * Sorted files never change, and this keeps them open. So what it knows stays true when RocksDB
  * compacts them; it only holds their space until `begin` and `keep` look again.
  *
  * Who searches holds the store's monitor; so do callers of `begin`, `keep` and `close`. `begin`
  * needs the lock of the disk tier, too, and so do `prepare` and what follows it, for the one
  * thread that flushes.
  *
  * @param maps whether files may be mapped into memory; if not, it always stands aside */
private[millpond] final class PointReads(dir: File, rocks: LocalRocks, maps: Boolean) {
  import PointReads._

  @volatile private var view: Array[SortedRun] = null // from the newest
  @volatile private var outdated = false // RocksDB has replaced a file of the view
  @volatile private var refused = false
  @volatile private var building: Building = null
  private val used = new AtomicLong
  private var budget: MemoryBudget = null
  private val retired = mutable.ArrayBuffer.empty[IndexedSst] // no search begins with them
  @volatile private var hasRetired = false
  private var found = 0L
  private val names = mutable.HashMap.empty[String, AnyRef] // of live files
  private var replaced = 0L
  private var replacedIn: AnyRef = null // of which files

  /** Whether a search read a block. */
  var hasRead = false
  /** Where the value of the last search is. */
  def valueAt: Long = found

  def isReady: Boolean = view != null
  def isOutdated: Boolean = view != null && outdated
  def isWanted: Boolean =
    maps && building == null && (if (view == null) !refused else outdated)
  def usedBytes: Long = used.get

  /** Length of the value of a key, or one of `Absent` and `Unknown`. */
  def find(key: Array[Byte], length: Int): Int = {
    hasRead = false
    if (hasRetired) freeRetired()
    val now = view
    if (now == null) Unknown
    else {
      val hash = Bytes.hash64(key, Bytes.ArrayOffset, length)
      var n = NotHere
      var i = 0
      while (n == NotHere && i < now.length) {
        n = findIn(now(i).covering(key, length), hash, key, length)
        i += 1
      }
      if (n == NotHere) Absent else n
    }
  }

  private def findIn(file: IndexedSst, hash: Long, key: Array[Byte], length: Int): Int = {
    var skip = 0
    var number = file.keys.candidate(hash, 0)
    val block = if (number < 0) null else blocks.get
    while (number >= 0) {
      hasRead = true
      file.sst.load(block, number)
      if (block.find(key, length)) {
        found = block.valueAt
        return if (block.isDeletion) Absent else block.valueLength
      }
      skip += 1
      number = file.keys.candidate(hash, skip)
    }
    NotHere
  }

  /** Begin to look through the files that are not known yet. Returns false, and stands aside, if
    * there is no room. */
  def begin(memory: MemoryBudget): Boolean = rocks.use(begin(_, memory))

  private def begin(db: RocksDB, memory: MemoryBudget): Boolean = synchronized {
    freeRetired()
    budget = memory
    // none of the files may go while they are opened
    db.disableFileDeletions()
    try {
      val live = rocks.files
      val isTooLarge = live.exists(_.size > MappedSst.mostBytes)
      if (isTooLarge || bytesFor(live) > mostWhenBuilt(memory.fairShareBytes)) {
        refuse()
        freeRetired()
      } else {
        val next = new Building
        building = next
        open(live, next)
      }
    } catch { case e: Throwable => end(); throw e }
    finally db.enableFileDeletions()
    building != null
  }

  /** Open the files. Those that have tables keep them. */
  private def open(live: Seq[LiveFileMetaData], into: Building): Unit = {
    val known = if (view == null) Map.empty[AnyRef, IndexedSst]
    else allOf(view).map(f => f.sst.identity -> f).toMap
    live.foreach { meta =>
      val file = named(meta.fileName)
      val made = MappedSst.identityOf(file).flatMap(known.get)
      into.files += new Opened(meta, made.fold(new MappedSst(file))(_.sst), made.orNull)
    }
  }

  private def bytesFor(live: Iterable[LiveFileMetaData]): Long =
    live.iterator.map(f => KeyBlocks.bytesFor(f.numEntries)).sum

  /** Do about so many keys. False: it is `keep`'s turn, or nothing is begun. */
  def step(keys: Int): Boolean = {
    val now = building
    now != null && {
      val next = now.synchronized(if (now.isOver) null else work(now, keys))
      // without the lock: whoever gives all up under the store's monitor would wait for memory
      if (next != null) take(now, Indexing.of(next, now.block, budget))
      now.synchronized(!now.isWhole && !now.isOver && !now.isCrowded)
    }
  }

  /** Do a part. Returns the file whose table is to be made next, or null. */
  private def work(now: Building, keys: Int): MappedSst = {
    if (now.current != null) go(now, keys)
    else if (now.understood < now.files.size) {
      val f = now.files(now.understood)
      if (f.made == null && !isReadable(f.sst, now.block)) now.refuse()
      now.understood += 1
      now.isCrowded = now.understood == now.files.size && !fits(now)
    } else if (now.done == now.files.size) now.isWhole = true
    else if (now.files(now.done).made != null) now.done += 1
    else return now.files(now.done).sst
    null
  }

  /** Whether there is room for new tables beside all others. */
  private def fits(now: Building): Boolean = {
    val bytes = now.files.iterator.filter(_.made == null)
      .map(f => KeyBlocks.bytesFor(f.sst.entries, f.sst.blocks)).sum
    used.get + bytes <= most(budget.fairShareBytes)
  }

  private def take(now: Building, indexing: Indexing): Unit = now.synchronized {
    if (now.isOver) { if (indexing != null) indexing.keys.close() }
    else if (indexing == null) now.refuse()
    else {
      now.current = indexing
      added(indexing.keys.bytes)
    }
  }

  private def go(now: Building, keys: Int): Unit = if (!now.current.step(keys)) {
    val f = now.files(now.done)
    f.made = new IndexedSst(f.sst, now.current.keys)
    now.current = null
    now.done += 1
  }

  /** If all files are done, they answer from now on. Else it is given up, unless it had no room
    * beside the tables of files that RocksDB has replaced. These serve as long as they can.
    *
    * Returns whether they are gone now, and it goes on. */
  def keep(): Boolean = synchronized {
    val now = building
    val goesOn = now != null && now.synchronized(now.isCrowded && makeRoom(now))
    if (!goesOn) complete(now)
    goesOn
  }

  private def makeRoom(now: Building): Boolean = {
    retire(but = (now.files.map(_.made) ++ now.later).toSet)
    freeRetired()
    now.isCrowded = false
    if (!fits(now)) now.refuse()
    !now.isOver
  }

  private def complete(now: Building): Unit = {
    if (now != null) now.synchronized {
      if (now.isWhole) {
        now.isOver = true
        val before = view
        val (first, below) = now.files.partition(_.meta.level == 0)
        val newest = now.later ++ first.sortBy(-_.meta.largestSeqno).map(_.made)
        val levels = below.groupBy(_.meta.level).toSeq.sortBy(_._1).map(l => level(l._2))
        view = (newest.map(SortedRun.of) ++ levels).toArray
        outdated = false
        building = null
        if (before != null) {
          val kept = allOf(view).toSet
          allOf(before).filterNot(kept).foreach(close)
        }
      } else if (now.isRefused) refuse()
    }
    end()
  }

  /** Give up what was begun. */
  def end(): Unit = synchronized {
    val now = building
    building = null
    if (now != null) now.synchronized {
      now.isOver = true
      val kept = if (view == null) Set.empty[IndexedSst] else allOf(view).toSet
      now.later.filterNot(kept).foreach(close)
      if (now.current != null) { added(-now.current.keys.bytes); now.current.keys.close() }
      now.files.foreach(f =>
        if (f.made == null) f.sst.close() else if (!kept(f.made)) close(f.made))
    }
  }

  /** Stand aside until the files are others. */
  private def refuse(): Unit = { refused = true; end(); retire() }

  /** Prepare a sorted file that is about to become part of the tier, or stand aside. Returns what
    * `joined` or `failed` want, null: nothing. */
  private[disk] def prepare(file: File): AnyRef =
    if (isIdle) null
    else {
      // without a lock that a search may need: it takes as long as to write the file
      val sst = MappedSst.ifPossible(file)
      var made: IndexedSst = null
      var indexing: Indexing = null
      try {
        val reader = new SstBlock
        if (sst != null && isReadable(sst, reader)) indexing = Indexing.of(sst, reader, budget)
        if (indexing != null) {
          while (indexing.step(Int.MaxValue)) ()
          if (used.get + indexing.keys.bytes <= most(budget.fairShareBytes)) {
            made = new IndexedSst(sst, indexing.keys)
            added(made.bytes)
          }
        }
      } finally if (made == null) {
          if (indexing != null) indexing.keys.close()
          if (sst != null) sst.close()
          synchronized(refuse())
        }
      made
    }

  /** Whether no search asks these files, now and when what was begun is kept. `keep` may come
    * between the two looks: it makes the view before it forgets what was begun. `begin` cannot. */
  private def isIdle: Boolean = {
    val isBuilding = building != null
    Seams.at("points.prepare")
    !isBuilding && view == null
  }

  /** The file is part of the tier, as the newest. */
  private[disk] def joined(prepared: AnyRef): Unit = synchronized {
    prepared match {
      case made: IndexedSst =>
        if (view != null) view = SortedRun.of(made) +: view
        if (building != null) building.later = made +: building.later
        else if (view == null) close(made)
      case _ => // `prepare` found none, or stood aside
    }
    judge()
  }

  /** Nobody knows whether the file is part of the tier, or what else has changed: stand aside. */
  private[disk] def failed(prepared: AnyRef): Unit = synchronized {
    prepared match {
      case made: IndexedSst => close(made)
      case _ =>
    }
    changed()
  }

  /** Rows are deleted other than by a sorted file: look at all files anew. */
  private[disk] def changed(): Unit = synchronized { end(); retire(); refused = false }

  /** See whether RocksDB has replaced files. */
  def judge(): Unit = synchronized(if (view != null || refused) {
    val files = rocks.files
    refused = budget != null && bytesFor(files) > mostWhenBuilt(budget.fairShareBytes)
    // more stores have opened: each has a smaller share
    if (view != null && used.get > most(budget.fairShareBytes)) { end(); retire() }
    if (view != null) {
      val live = files.map(_.fileName).toSet
      names.filterInPlace((name, _) => live(name))
      live.foreach(name => if (!names.contains(name)) identify(name))
      val there = names.map(_.swap)
      outdated = !allOf(view).forall(f => there.contains(f.sst.identity))
      // a file that a flush brought has another name by now
      allOf(view).map(_.sst).foreach(sst =>
        there.get(sst.identity).foreach(name => sst.single.place = named(name)))
    }
  })

  /** Bytes of files that RocksDB has replaced and whose space this holds. */
  private[disk] def replacedBytes: Long = synchronized {
    val now = (view, retired.size, rocks.change)
    if (replacedIn != now) {
      val held = (if (view == null) Iterator.empty else allOf(view)) ++ retired
      replaced = if (held.isEmpty) 0L
      else {
        val there = rocks.files.iterator.map(_.fileName)
          .flatMap(name => names.get(name).orElse(MappedSst.identityOf(named(name)))).toSet
        held.filterNot(f => there(f.sst.identity)).map(_.sst.bytes).sum
      }
      replacedIn = now
    }
    replaced
  }

  private def identify(name: String): Unit = {
    // a compaction may have replaced it already
    MappedSst.identityOf(named(name)).foreach(names(name) = _)
  }

  private def named(name: String): File = new File(dir, name.stripPrefix("/"))

  /** No search uses the view from the next one on, which frees its files.
    * @param but files that somebody else owns now */
  private def retire(but: Set[IndexedSst] = Set.empty): Unit = {
    val before = view
    view = null
    if (before != null) { retired ++= allOf(before).filterNot(but); hasRetired = true }
  }

  /** Callers hold the store's monitor. */
  private[disk] def freeRetired(): Unit = synchronized {
    hasRetired = false
    retired.foreach(close)
    retired.clear()
  }

  private def close(file: IndexedSst): Unit = { added(-file.bytes); file.close() }

  /** A scan over the files that answer now, null if it must be RocksDB's. It may go on while others
    * take their place. */
  private[disk] def scan(): DiskScan = synchronized {
    val now = view
    if (now == null || outdated) null
    else {
      val pinned = allOf(now).toVector
      // in the folder they have RocksDB's names
      if (!pinned.map(_.sst.identity).forall(names.values.toSet))
        rocks.files.foreach(f => identify(f.fileName))
      val files = names.map { case (name, identity) => identity -> named(name) }
      pinned.foreach(_.scans += 1)
      new MappedScan(now.map(new SstCursor(_, file => files.get(file.sst.identity).orNull)),
        () => synchronized(pinned.foreach(_.unpin())))
    }
  }

  /** A pass of maintenance. */
  private[disk] def rest(): Unit = synchronized(
    if (view != null) allOf(view).foreach(_.sst.single.rest()))

  private def added(bytes: Long): Unit = { used.addAndGet(bytes); () }

  private[disk] def close(): Unit = synchronized {
    end()
    retire()
    freeRetired()
  }
}

private object PointReads {
  val Absent: Int = -1
  /** Ask RocksDB. */
  val Unknown: Int = -2
  private val NotHere = -3
  // of the threads that search
  val blocks: ThreadLocal[SstBlock] = ThreadLocal.withInitial[SstBlock](() => new SstBlock)

  /** Bytes that all tables may have when they are made. What a flush adds until the next
    * compaction has room above that. */
  private def mostWhenBuilt(share: Long): Long = share * 5 / 8
  private def most(share: Long): Long = share * 3 / 4

  private def isReadable(sst: MappedSst, block: SstBlock): Boolean =
    sst.understand(block) && sst.blocks <= KeyBlocks.mostBlocks

  private def allOf(runs: Array[SortedRun]): Iterator[IndexedSst] =
    runs.iterator.flatMap(_.files.iterator)

  private def level(of: Iterable[Opened]): SortedRun = {
    val ascending = of.toVector.sortWith((a, b) =>
      java.util.Arrays.compareUnsigned(a.meta.smallestKey, b.meta.smallestKey) < 0)
    new SortedRun(ascending.map(_.made).toArray, ascending.map(_.meta.largestKey).toArray)
  }

  private final class Opened(val meta: LiveFileMetaData, val sst: MappedSst, var made: IndexedSst)

  private final class Building {
    val files = mutable.ArrayBuffer.empty[Opened]
    val block = new SstBlock
    var understood = 0
    var done = 0
    var current: Indexing = null
    var isWhole = false
    var isCrowded = false // by other tables
    var isRefused = false
    var isOver = false
    var later = List.empty[IndexedSst] // files that came meanwhile, the newest first

    def refuse(): Unit = { isRefused = true; isOver = true }
  }

  /** Goes through a file. */
  private final class Indexing(sst: MappedSst, block: SstBlock, val keys: KeyBlocks) {
    private var number = 0
    private var entries = 0L

    /** Do blocks with about so many keys. False: all are done. */
    def step(wanted: Int): Boolean = {
      var left = wanted
      while (left > 0 && number < sst.blocks) {
        sst.load(block, number)
        while (block.next()) {
          entries += 1
          if (entries > sst.entries) sst.damaged("has more entries than it says")
          keys.add(Bytes.hash64(block.key, Bytes.ArrayOffset, block.keyLength), number)
          left -= 1
        }
        number += 1
      }
      if (number == sst.blocks) sst.indexed()
      number < sst.blocks
    }
  }

  private object Indexing {
    /** Null: there is no room. */
    def of(sst: MappedSst, block: SstBlock, budget: MemoryBudget): Indexing =
      try new Indexing(sst, block, new KeyBlocks(budget, sst.entries, sst.blocks))
      catch { case _: OutOfMemoryError => null }
  }
}
