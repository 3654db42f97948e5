package org.apache.spark.sql.millpond.engine

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Daemons, Seams}

/** Makes what helps reads of a disk tier, in the background, once a read has needed it. Without it
  * the store is slower, not wrong.
  *
  * Callers hold the store's monitor. The work does not: each read of the task would pay for it. */
private[engine] final class LookupFill(store: StoreView, warmUp: WarmUp) extends Logging {
  import LookupFill._
  import store.{status, tier}

  private var queued = false
  private var failedIn = 0 // generation; 0: a flush has ended since
  private var warnedIn = 0 // generation

  /** A row was looked up on disk. */
  def wanted(): Unit =
    if (!queued && tier.disk.lookup.isWanted && !warmUp.isActive &&
      !tier.disk.hasSources && failedIn != status.generation) {
      queued = true
      val generation = status.generation
      Seams.start(s"lookup ${store.context.label}", () => run(generation))(pool.execute(_))
    }

  /** Maintenance: RocksDB may have replaced files, whose space the lookup still holds. */
  def refresh(): Unit = if (tier.isOpen) {
    tier.disk.lookup.judge()
    if (tier.disk.lookup.isOutdated) wanted()
  }

  /** The disk tier has changed: what failed may go well now. Each try reads all files, so there is
    * one for each flush. */
  def flushed(): Unit = failedIn = 0

  private def run(generation: Int): Unit =
    try
      store.shown.background.during("lookup") {
        val lookup = store.diskLock.during(store.synchronized {
          if (mayBegin(generation)) { tier.beginLookup(); tier.disk.lookup }
          else null
        })
        if (lookup != null) {
          def keys = Seams.stretch("lookup.keys", StepKeys).toInt
          do while (lookup.step(keys)) Seams.at("lookup.step")
          while (store.synchronized(lookup.keep()))
        }
      }
    catch {
      case NonFatal(e) =>
        val isNew = store.synchronized {
          val warned = warnedIn == generation
          failedIn = generation
          warnedIn = generation
          if (status.serves(generation) && tier.isOpen) tier.disk.lookup.end()
          !warned
        }
        val text = s"store ${store.context.label}: reads of its disk tier get no help until a " +
          s"flush: ${e.getMessage}"
        if (isNew) logWarning(text) else logDebug(text)
    } finally store.synchronized { queued = false }

  private def mayBegin(generation: Int): Boolean =
    status.serves(generation) && tier.isOpen && !tier.disk.hasSources && tier.disk.lookup.isWanted
}

private object LookupFill {
  private val StepKeys = 1024L

  private lazy val pool = Daemons.one("millpond-lookup")
}
