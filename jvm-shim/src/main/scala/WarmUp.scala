package org.apache.spark.sql.millpond

import java.nio.ByteBuffer
import java.util.concurrent.{Executors, ThreadFactory}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/** After a restore: brings the rows of the disk tier into memory in the background, in short steps between those of the task, until all
  * are there (then no read needs the disk) or the budget is nearly used. It stands aside for scans of the same store, which read the same
  * rows, and while batches that hardly read need all cores: their few reads from the disk cost less than it would take from them. */
private[millpond] object WarmUp extends Logging {
  private val StepRows = 1024L
  private val BudgetShare = 0.9
  private val FewReads = 4096 // from the disk, about 20 ms
  private val courtesy = Courtesy.ofWarmUp() // of the one thread

  private lazy val pool = Executors.newFixedThreadPool(1,
    new ThreadFactory {
      def newThread(work: Runnable): Thread = {
        val thread = new Thread(work, "millpond-warm-up")
        thread.setDaemon(true)
        thread
      }
    })

  /** The engine's monitor is held. */
  def start(engine: StoreEngine): Unit = {
    engine.warming = true
    val generation = engine.generation
    Seams.start(
      s"warm-up ${engine.context.label}",
      () =>
        try run(engine, generation)
        catch {
          // the rows stay on disk, where every read finds them; a damaged file is reported by the read that needs it
          case NonFatal(e) =>
            engine.synchronized(if (engine.generation == generation) engine.endWarmUp())
            logWarning(s"store ${engine.context.label} stays on disk: ${e.getMessage}")
        }
    )(pool.execute(_))
  }

  private def run(engine: StoreEngine, generation: Int): Unit = {
    var going = engine.synchronized {
      val active =
        engine.warming && engine.generation == generation && !engine.closed && engine.loaded
      if (active) engine.warmScan =
        new WarmScan(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
      active
    }
    while (going) {
      if (Seams.director == null) courtesy.giveWay(
        engine.isScanned || (Busy.batchesNeedAllCores && engine.diskReads < FewReads))
      // a store that is being loaded anew is left at once: this thread serves the others too
      going = engine.generation == generation && engine.synchronized(
        engine.generation == generation && step(engine))
      Thread.`yield`()
      Seams.at("warm-up.step")
    }
  }

  /** Bring in everything before the store is used. The engine's monitor is held. */
  def loadAll(engine: StoreEngine): Unit = {
    val rows = new WarmScan(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
    try while (rows.step(StepRows.toInt)) Pressure.refuse(engine)
    finally rows.close()
    rows.end()
  }

  /** Some rows; false if this was the end. */
  private def step(engine: StoreEngine): Boolean =
    if (!engine.warming) false
    else if (engine.budget.usedBytes > engine.budget.limitBytes * BudgetShare) {
      engine.endWarmUp(); false
    } else if (engine.warmScan.step(Seams.stretch("warm-up.rows", StepRows).toInt)) true
    else {
      engine.warmScan.end()
      engine.endWarmUp()
      false
    }
}

/** Where the warm-up of a store stands. Rows pass through two direct buffers: no array is made for them. */
private[millpond] final class WarmScan(scan: DiskScan, families: Iterable[Family]) {
  private val loading = families.map(_.table).filterNot(_.complete).toArray
  private val keys = new PhysicalKeys(scan, families)
  private var values = ByteBuffer.allocateDirect(4096)
  loading.foreach(_.beginLoading())

  /** All rows have been seen. */
  def end(): Unit = loading.foreach(_.endLoading())

  /** Some rows; false if there are no more. Not to be called after that. */
  def step(rows: Int): Boolean = {
    var n = 0
    var more = true
    while (n < rows && more) {
      more = keys.next()
      if (more && keys.family != null) admit(keys.family)
      n += 1
    }
    more
  }

  private def admit(f: Family): Unit = {
    val hash = Bytes.hash(null, keys.at, keys.length)
    if (f.table.find(null, keys.at, keys.length, hash) == 0L) {
      values.clear()
      var valueLength = scan.valueInto(values)
      if (valueLength > values.capacity) {
        values = ByteBuffer.allocateDirect(RowLimit.bufferFor(valueLength))
        valueLength = scan.valueInto(values)
      }
      f.table.admit(null, keys.at, keys.length, hash, keys.slot, f.prefixLength(null, keys.at),
        null, SparkLine.addressOf(values) + f.valueLead, valueLength - f.valueLead, 0): Unit
    }
  }

  def close(): Unit = scan.close()
}
