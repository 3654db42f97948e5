package org.apache.spark.sql.millpond

import java.nio.ByteBuffer
import java.util.concurrent.{Executors, ThreadFactory}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.unsafe.Platform

/** After a restore: brings the rows of the disk tier into memory in the background, in short steps between those of the task, until all
  * are there (then no read needs the disk) or the budget is nearly used. It stands aside for scans of the same store, which read the same
  * rows, and while batches that hardly read need all cores: their few reads from the disk cost less than it would take from them. */
private[millpond] object WarmUp extends Logging {
  private val StepRows = 1024
  private val BudgetShare = 0.9
  private val FewReads = 4096 // from the disk, about 20 ms
  private val courtesy = Courtesy.ofWarmUp() // of the one thread

  private lazy val pool = Executors.newFixedThreadPool(1, new ThreadFactory {
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
    pool.execute(() =>
      try run(engine, generation)
      catch {
        // the rows stay on disk, where every read finds them; a damaged file is reported by the read that needs it
        case NonFatal(e) =>
          engine.synchronized(if (engine.generation == generation) engine.endWarmUp())
          logWarning(s"store ${engine.context.label} stays on disk: ${e.getMessage}")
      })
  }

  private def run(engine: StoreEngine, generation: Int): Unit = {
    var going = engine.synchronized {
      val active = engine.warming && engine.generation == generation && !engine.closed && engine.loaded
      if (active) engine.warmScan = new WarmScan(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
      active
    }
    while (going) {
      courtesy.giveWay(engine.isScanned || (Busy.batchesNeedAllCores && engine.diskReads < FewReads))
      going = engine.synchronized(engine.generation == generation && step(engine))
      Thread.`yield`()
    }
  }

  /** Bring in everything before the store is used. The engine's monitor is held. */
  def loadAll(engine: StoreEngine): Unit = {
    val rows = new WarmScan(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
    try while (rows.step(StepRows)) Pressure.refuse(engine)
    finally rows.close()
    engine.families.values.forEach(f => f.table.complete = true)
  }

  /** Some rows; false if this was the end. */
  private def step(engine: StoreEngine): Boolean =
    if (!engine.warming) false
    else if (engine.budget.usedBytes > engine.budget.limitBytes * BudgetShare) { engine.endWarmUp(); false }
    else if (engine.warmScan.step(StepRows)) true
    else {
      engine.families.values.forEach(f => f.table.complete = true)
      engine.endWarmUp()
      false
    }
}

/** Where the warm-up of a store stands. Rows pass through two direct buffers: no array is made for them. */
private[millpond] final class WarmScan(scan: DiskScan, families: Iterable[Family]) {
  private val byId = new Array[Family](0x10000)
  families.foreach(f => byId(f.id) = f)
  private var keys = ByteBuffer.allocateDirect(256)
  private var values = ByteBuffer.allocateDirect(4096)
  scan.seekToFirst()

  def step(rows: Int): Boolean = {
    var n = 0
    while (n < rows && scan.isValid) {
      keys.clear()
      var keyLength = scan.keyInto(keys)
      if (keyLength > keys.capacity) {
        keys = ByteBuffer.allocateDirect(keyLength * 2)
        keyLength = scan.keyInto(keys)
      }
      val key = SparkLine.addressOf(keys)
      val f = byId(unsigned(key + 2))
      val at = key + 4 + f.keyLead
      val length = keyLength - f.keyExtra
      val slot = unsigned(if (f.shape.keyTrail == 0) key else key + keyLength - 2)
      val hash = Bytes.hash(null, at, length)
      if (f.table.find(null, at, length, hash) == 0L) {
        values.clear()
        var valueLength = scan.valueInto(values)
        if (valueLength > values.capacity) {
          values = ByteBuffer.allocateDirect(valueLength * 2)
          valueLength = scan.valueInto(values)
        }
        f.table.admit(null, at, length, hash, slot, f.prefixLength(null, at), null, SparkLine.addressOf(values) + f.valueLead, valueLength - f.valueLead, 0)
      }
      scan.next()
      n += 1
    }
    scan.isValid
  }

  private def unsigned(at: Long): Int = ((Platform.getByte(null, at) & 0xFF) << 8) | (Platform.getByte(null, at + 1) & 0xFF)

  def close(): Unit = scan.close()
}
