package org.apache.spark.sql.millpond.engine

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.{Daemons, Seams}

/** Makes the key filter of a disk tier, in the background, once a read has needed it. Without it
  * the store is slower, not wrong.
  *
  * Callers hold the store's monitor. The scan does not: each read of the task would pay for it. */
private[engine] final class FilterFill(store: StoreView, warmUp: WarmUp) extends Logging {
  import FilterFill._
  import store.{status, tier}

  private var queued = false
  private var failedIn = 0 // generation

  /** A row was looked up on disk. */
  def wanted(): Unit = if (!queued && tier.disk.filter.isWanted && !warmUp.isActive &&
    !tier.disk.hasSources && failedIn != status.generation) {
    queued = true
    val generation = status.generation
    Seams.start(s"filter ${store.context.label}", () => run(generation))(pool.execute(_))
  }

  private def run(generation: Int): Unit =
    try
      store.shown.background.during("filter") {
        val filter = store.diskLock.during(store.synchronized {
          if (mayBegin(generation)) { tier.beginFilter(); tier.disk.filter }
          else null
        })
        if (filter != null) {
          while (filter.step(Seams.stretch("filter.keys", StepKeys).toInt)) Seams.at("filter.step")
          store.synchronized(filter.keep())
        }
      }
    catch {
      case NonFatal(e) =>
        store.synchronized {
          failedIn = generation
          if (status.serves(generation) && tier.isOpen) tier.disk.filter.end()
        }
        logWarning(s"store ${store.context.label}: no key filter was made: ${e.getMessage}")
    } finally store.synchronized { queued = false }

  private def mayBegin(generation: Int): Boolean =
    status.serves(generation) && tier.isOpen && !tier.disk.hasSources && tier.disk.filter.isWanted
}

private object FilterFill {
  private val StepKeys = 1024L

  private lazy val pool = Daemons.one("millpond-filter")
}
