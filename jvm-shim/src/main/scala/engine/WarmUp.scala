package org.apache.spark.sql.millpond.engine

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Daemons, Seams}
import org.apache.spark.sql.millpond.memory.MemoryBudget
import org.apache.spark.sql.millpond.observe.Background

/** Brings the rows of the disk tier into memory after a restore. It works in the background, in
  * short steps between those of the task. It ends when memory has all rows, so that no read needs
  * the disk, or when the budget is nearly used.
  *
  * @param monitor the store's own
  * @param isPaused whether a scan reads the same rows; any thread may ask
  * @param isStandby whether the store only follows another one: it leaves memory for others */
private[engine] final class WarmUp(monitor: AnyRef, label: String, status: StoreStatus,
    families: Families, tier: StoreTier, budget: MemoryBudget, background: Background,
    isPaused: () => Boolean, isStandby: () => Boolean) extends Logging {
  import WarmUp._

  private var active = false
  private var rows: WarmScan = null
  // Counts the starts and the ends: the thread of an earlier start, which waits between two of its
  // steps, must not work at the rows of the next one.
  @volatile private var turn = 0

  /** Whether memory may still get rows of the disk tier. Callers hold the engine's monitor. */
  def isActive: Boolean = active
  /** Whether it has an iterator over the disk tier. Callers hold the engine's monitor. */
  def isReading: Boolean = rows != null

  def start(): Unit = {
    check()
    active = true
    turn += 1
    val mine = turn
    Seams.start(
      s"warm-up $label",
      () =>
        try background.during("warm-up")(run(mine))
        catch {
          // the rows stay on disk, where every read finds them; a read that needs a
          // damaged file reports it
          case NonFatal(e) =>
            monitor.synchronized(if (turn == mine) end())
            logWarning(s"store $label: its warm-up ended early: ${e.getMessage}")
        }
    )(pool.execute(_))
  }

  /** Stop; nothing happens if it has stopped. */
  def end(): Unit = {
    check()
    active = false
    turn += 1
    if (rows != null) {
      rows.close()
      rows = null
    }
  }

  /** Bring in all rows before the store is used.
    * @param checkMemory fails if they need too much */
  def loadAll(checkMemory: () => Unit): Unit = {
    check()
    val all = scan()
    try while (all.step(StepRows.toInt, StepBytes)) checkMemory()
    finally all.close()
    all.end()
  }

  private def run(mine: Int): Unit = {
    var going = monitor.synchronized {
      val wanted = turn == mine && status.isLoaded
      if (wanted) rows = scan()
      wanted
    }
    while (going) {
      if (Seams.director == null) throttle.giveWay(isPaused())
      // leave a store that is being reloaded at once: this thread serves other stores too
      going = turn == mine && monitor.synchronized(turn == mine && step())
      Thread.`yield`()
      Seams.at("warm-up.step")
    }
  }

  private def scan(): WarmScan =
    new WarmScan(tier.disk.iterator(readAhead = true), families.all)

  /** Bring in some rows; false at the end. */
  private def step(): Boolean =
    if (budget.usedBytes > budget.limitBytes * (if (isStandby()) StandbyShare
                                                else BudgetShare)) {
      end()
      false
    } else if (rows.step(Seams.stretch("warm-up.rows", StepRows).toInt, StepBytes)) true
    else {
      rows.end()
      end()
      false
    }

  private def check(): Unit =
    assert(Thread.holdsLock(monitor), "without the store's monitor")
}

private object WarmUp {
  // between two steps it looks at the budget, and lets others have the store
  private val StepRows = 1024L
  private val StepBytes = 1L << 20
  private val BudgetShare = 0.9
  private val StandbyShare = 0.75
  private val MostPauseNs = 5000000000L
  private val throttle = new Throttle(MostPauseNs) // of the one thread

  private lazy val pool = Daemons.one("millpond-warm-up")
}
