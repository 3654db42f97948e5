package org.apache.spark.sql.millpond.testing

import java.util.concurrent.locks.ReentrantLock

import scala.collection.mutable
import scala.util.Random

import org.rocksdb.RocksDBException

import org.apache.spark.sql.millpond.base.{
  ClockPart, LocalDirsPart, MillpondError, OptionsPart, Seams
}
import org.apache.spark.sql.millpond.changelog.{BlockPart, ChangelogPart}
import org.apache.spark.sql.millpond.disk.{
  ComposedPart, DiskTierPart, FlushPart, KeyFilterPart, LargeValuePart, ManyBlocksPart,
  PointReadsPart, RestPart, SingleReadsPart, TierFilterPart
}
import org.apache.spark.sql.millpond.driver.{
  LanguagesPart, LateRowsPart, OldHeartbeatsPart, PastedCommandsPart, WorkerClocksPart
}
import org.apache.spark.sql.millpond.engine.{
  FlushBehindPart, FormerFamilyPart, HeapPart, LogSyncPart, ReliefPart, UnloadedPart, WarmUpPart
}
import org.apache.spark.sql.millpond.memory.{
  ArenaPart, KeySortPart, NativeHeapPart, SharesPart, SortedIndexPart, TablePart
}
import org.apache.spark.sql.millpond.observe.{KeptReportsPart, ReportAgesPart}
import org.apache.spark.sql.millpond.provider.AnotherSparkPart
import org.apache.spark.sql.millpond.transport.MapReadsPart

/** Does random operations on a part of the store, and compares it with a plain model. It has no
  * session, no provider and no agent. */
trait Part {
  def name: String
  /** Returns the error with which a trial may let this seam fail; None: it must not. */
  def fault(point: String): Option[Throwable] = None
  /** What a trial may do after a failure. Each failure meets each of them. */
  def aftermaths: Seq[String] = Seq("go on")
  /** Returns how much work to do at once. Production does `usual`. */
  def stretch(what: String, usual: Long): Long = usual
  /** Only one seed in so many meets failures. A long sequence has many calls that can fail. */
  def failuresEvery: Int = 1
  /** Does one sequence of operations. Any exception is a failure of the part. So is memory that the
    * part does not give back. */
  def run(trial: Trial): Unit
}

/** One sequence. The seed and the failure decide it.
  *
  * @param failAt the number of the call that fails, from 1, over all seams that
  * the part lets fail; 0: none
  * @param aftermath what to do after the failure */
final class Trial(
    part: Part, val seed: Long, val failAt: Int, val aftermath: String) extends Seams.Director {
  val random = new Random(seed)
  private val steps = mutable.ArrayBuffer.empty[String]
  private var calls = 0
  private var sheltered = ""
  /** What another thread does while this one is at a seam. */
  var beside: String => Unit = Trial.nothing

  def seams: Int = calls
  def log: String = steps.mkString("\n")
  /** Whether the failure has happened. */
  def hasFailed: Boolean = failAt > 0 && calls >= failAt

  def step(what: => String): Unit = if (steps.size < Trial.MostSteps) steps += what
  def chance(percent: Int): Boolean = random.nextInt(100) < percent
  def check(holds: Boolean, what: => String): Unit = if (!holds) throw new AssertionError(what)
  def equal(actual: Any, expected: Any, what: => String): Unit =
    check(actual == expected, s"$what is $actual, not $expected")

  /** Does work that must pass no seam that can fail. A way back must not need a
    * resource that has just run out. */
  def sheltered[T](what: String)(work: => T): T = {
    val before = sheltered
    sheltered = what
    try work
    finally sheltered = before
  }

  override def at(point: String): Unit = {
    beside(point)
    part.fault(point).foreach { e =>
      check(sheltered.isEmpty, s"$sheltered comes to $point")
      calls += 1
      if (calls == failAt) { step(s"  $point fails"); throw e }
    }
  }
  override def stretch(what: String, usual: Long): Long = part.stretch(what, usual)
  override def start(name: String, work: Runnable): Unit =
    throw new AssertionError(s"$name is started")
  override def acquire(lock: ReentrantLock): Unit = lock.lock()
}

object Trial {
  private val MostSteps = 10000
  val nothing: String => Unit = _ => ()

  /** Does work in a new thread, which has no buffers yet. */
  def inNewThread(work: => Unit): Unit = {
    var failure: Throwable = null
    val thread = new Thread(() =>
      try work
      catch { case e: Throwable => failure = e })
    thread.start()
    thread.join()
    if (failure != null) throw failure
  }

  def noMemory(point: String): Option[Throwable] =
    if (point.startsWith("memory.")) Some(new OutOfMemoryError("as the test wants it")) else None
  /** Does work whose seams do not count. */
  def unheard[T](work: => T): T = {
    val director = Seams.director
    Seams.director = null
    try work
    finally Seams.director = director
  }

  /** Returns RocksDB's error at seams where the disk tier must translate it. */
  def diskFull(point: String): Option[Throwable] =
    if (!point.startsWith("disk.")) None
    else if (point == "disk.compact")
      Some(MillpondError.of("LOCAL_DISK_FULL", "as the test wants it"))
    else Some(new RocksDBException("IO error: No space left on device: as the test wants it"))
}

/** Arguments, for each part to run: its name, the first seed, the number of seeds. Runs every seed
  * without a failure, and then with a failure of every call that may fail. Prints the first
  * sequence that goes wrong, and ends with exit code 1. */
object Parts {
  private val parts: Seq[Part] = Seq(TablePart, ArenaPart, SortedIndexPart, KeySortPart, BlockPart,
    ChangelogPart, DiskTierPart, FlushPart, ComposedPart, KeyFilterPart,
    PointReadsPart, RestPart, LateRowsPart, FlushBehindPart, LogSyncPart, MapReadsPart, OptionsPart,
    ClockPart, WarmUpPart, LocalDirsPart, LargeValuePart, SharesPart, ManyBlocksPart,
    SingleReadsPart, NativeHeapPart, HeapPart, UnloadedPart, ReliefPart, TierFilterPart,
    KeptReportsPart, ReportAgesPart, WorkerClocksPart, OldHeartbeatsPart, AnotherSparkPart,
    FormerFamilyPart, LanguagesPart, PastedCommandsPart)

  def main(args: Array[String]): Unit =
    args.grouped(3).foreach { of => run(of(0), of(1).toLong, of(2).toInt) }

  private def run(name: String, first: Long, seeds: Int): Unit = {
    val part =
      parts.find(_.name == name).getOrElse(throw new IllegalArgumentException(s"part $name"))
    val started = System.nanoTime
    var sequences = 0
    def attempt(trial: Trial): Int = {
      sequences += 1
      Seams.director = trial
      try { part.run(trial); trial.seams }
      catch {
        case e: Throwable =>
          println(trial.log)
          val failing =
            if (trial.failAt == 0) ""
            else s", call ${trial.failAt} failing, then '${trial.aftermath}'"
          println(s"$name fails with seed ${trial.seed}$failing")
          e.printStackTrace(System.out)
          sys.exit(1)
      } finally Seams.director = null
    }
    (first until first + seeds).foreach { seed =>
      val seams = attempt(new Trial(part, seed, 0, ""))
      if (seed % part.failuresEvery == 0)
        (1 to seams).foreach(n =>
          part.aftermaths.foreach(aftermath => attempt(new Trial(part, seed, n, aftermath))))
    }
    val ms = (System.nanoTime - started) / 1000000
    println(s"$name: $seeds seeds from $first on, $sequences sequences passed in $ms ms")
  }
}
