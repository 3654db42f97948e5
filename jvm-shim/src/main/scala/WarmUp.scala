package org.apache.spark.sql.millpond

import java.util.concurrent.{Executors, ThreadFactory}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/** After a restore: brings the rows of the disk tier into memory in the background, in short steps between those of the task, until all
  * are there (then no read needs the disk) or the budget is nearly used. */
private[millpond] object WarmUp extends Logging {
  private val StepRows = 1024
  private val BudgetShare = 0.9

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
    val byId = new Array[Family](0x10000)
    def active: Boolean = engine.warming && engine.generation == generation && !engine.closed && engine.loaded
    var going = engine.synchronized {
      if (active) {
        engine.warmScan = engine.disk.iterator(readAhead = true)
        engine.warmScan.seekToFirst()
        engine.families.values.asScala.foreach(f => byId(f.id) = f)
      }
      active
    }
    while (going) {
      going = engine.synchronized {
        if (!active) false
        else if (engine.budget.usedBytes > engine.budget.limitBytes * BudgetShare) { engine.endWarmUp(); false }
        else {
          val more = step(engine.warmScan, byId)
          if (!more) {
            byId.foreach(f => if (f != null) f.table.complete = true)
            engine.endWarmUp()
          }
          more
        }
      }
      Thread.`yield`()
    }
  }

  private def step(scan: DiskScan, byId: Array[Family]): Boolean = {
    var n = 0
    while (n < StepRows && scan.isValid) {
      val key = scan.key
      val slot = ((key(0) & 0xFF) << 8) | (key(1) & 0xFF)
      val f = byId(((key(2) & 0xFF) << 8) | (key(3) & 0xFF))
      val at = Bytes.ArrayOffset + 4L + f.keyLead
      val length = key.length - 4 - f.keyLead
      val hash = Bytes.hash(key, at, length)
      if (f.table.find(key, at, length, hash) == 0L) {
        val value = scan.value
        f.table.admit(key, at, length, hash, slot, f.prefixLength(key, at), value, Bytes.ArrayOffset + f.valueLead, value.length - f.valueLead, 0)
      }
      scan.next()
      n += 1
    }
    scan.isValid
  }
}
