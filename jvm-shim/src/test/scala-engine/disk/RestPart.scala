package org.apache.spark.sql.millpond.disk

import java.io.File
import java.util.concurrent.atomic.AtomicReference

import org.apache.spark.sql.millpond.changelog.Change
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Threads read, scan, write, compact and copy a disk tier while another one closes its RocksDB
  * whenever nobody uses it. */
object RestPart extends Part {
  override val name = "rest"
  override def stretch(what: String, usual: Long): Long = if (what == "disk.passes") 0L else usual

  override def run(trial: Trial): Unit = Scratch.within(trial, name) { dir =>
    val tier = new RestingTier(trial, dir)
    try tier.beside()
    finally tier.close()
  }
}

private final class RestingTier(trial: Trial, dir: File) {
  import trial.{check, equal, random}

  private val rounds = random.between(5, 40)
  private val keys = Vector.tabulate(random.between(1, 200))(n => f"\u0000\u0001$n%05d")
  private val tier = Scratch.tier(new File(dir, "db"))
  private val budget = new MemoryBudget(1L << 24)
  private val failure = new AtomicReference[Throwable]
  private val store = new Object // the store's monitor
  private val disk = new Object // the lock of the disk tier
  @volatile private var round = 0 // the value of all keys, or one less than it

  /** Returns when the writer has done its rounds. */
  def beside(): Unit = {
    write()
    val others = Seq[(String, () => Unit)]("rest" -> (() => tier.rest()), "read" -> (() => read()),
      "scan" -> (() => scan()), "copy" -> (() => copy()), "look up" -> (() => lookUp()),
      "compact" -> (() => tier.compact()))
    trial.step(s"$rounds rounds beside ${others.map(_._1)}")
    @volatile var isOver = false
    val threads = others.map { case (what, work) =>
      val thread = new Thread(
        () =>
          try while (!isOver && failure.get == null) work()
          catch { case e: Throwable => failure.compareAndSet(null, e); () },
        what
      )
      thread.start()
      thread
    }
    try (2 to rounds).foreach(_ => if (failure.get == null) write())
    finally { isOver = true; threads.foreach(_.join()) }
    if (failure.get != null) throw failure.get
    Scratch.rest(trial, tier)
    read()
    scan()
  }

  private def write(): Unit = disk.synchronized {
    val next = Change.bytes((round + 1).toString)
    val file = new File(dir, s"file-$round")
    val writer = tier.sstWriter(file)
    keys.map(Change.bytes).foreach(k => writer.put(k, 0, k.length, next, 0, next.length))
    writer.finish()
    tier.ingest(file)
    round += 1
  }

  /** Whether a value was that of all keys at a moment since `from`. */
  private def judge(value: Array[Byte], length: Int, from: Int): Unit = {
    val found = Change.text(value, 0, length).toInt
    check(found >= from && found <= round + 1, s"the value $found was read after $from")
  }

  private def read(): Unit = {
    val key = Change.bytes(keys(keys.size / 2))
    val from = round
    store.synchronized {
      val length = tier.get(key, key.length)
      check(length > 0, "a row is lost")
      judge(tier.lastValue, length, from)
    }
    val value = tier.read(key)
    judge(value, value.length, from)
    check(tier.estimatedKeys > 0, "there are no keys")
  }

  private def scan(): Unit = {
    val rows = store.synchronized(tier.iterator(readAhead = round % 2 == 0))
    try {
      rows.seekToFirst()
      val first = Change.text(rows.value)
      keys.foreach { k =>
        equal(Change.text(rows.key), k, "a key")
        equal(Change.text(rows.value), first, "a value beside others")
        rows.next()
      }
      check(!rows.isValid, "there are more rows")
    } finally rows.close()
  }

  private def copy(): Unit = disk.synchronized {
    val target = new File(dir, "copy")
    check(tier.snapshotTo(target).size > 0, "a copy has no files")
    Scratch.delete(target)
  }

  /** As one thread in the background does. */
  private def lookUp(): Unit = {
    disk.synchronized(store.synchronized {
      tier.lookup.judge()
      if (tier.lookup.isWanted) tier.lookup.begin(budget)
    })
    do while (tier.lookup.step(50)) ()
    while (store.synchronized(tier.lookup.keep()))
  }

  def close(): Unit = tier.close()
}
