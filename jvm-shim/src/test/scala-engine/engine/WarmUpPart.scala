package org.apache.spark.sql.millpond.engine

import java.io.File
import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.Options
import org.apache.spark.sql.millpond.changelog.Change
import org.apache.spark.sql.millpond.rows.{
  Family, FamilyKind, FamilyShape, KeyGroups, StoreLayout
}
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** The warm-up of a follower ends, and a take-over begins it again, while its thread waits between
  * two steps. Memory gets all rows all the same. */
object WarmUpPart extends Part {
  override val name = "warm-up"
  private val PatienceNs = 20000000000L

  override def run(trial: Trial): Unit = Trial.unheard {
    val rows = trial.random.between(1, 5000)
    trial.step(s"$rows rows")
    val engine = follower()
    try {
      val family = load(engine, rows)
      val session = new Session(-1L)
      engine.enter(session)
      // the warm-up waits for those who read the same rows
      val scan = engine.scans.all(session, family, each = false)
      engine.synchronized(engine.warmUp.start())
      await(trial, "it does not begin")(engine.synchronized(engine.warmUp.isReading))
      engine.synchronized {
        engine.warmUp.end()
        engine.takeOver()
      }
      scan.close()
      await(trial, "it does not end")(!engine.synchronized(engine.warmUp.isActive))
      trial.check(family.table.complete, "memory does not know that it has all rows")
      trial.equal(family.table.presentCount, rows, "the number of rows in memory")
    } finally engine.close()
  }

  private def await(trial: Trial, otherwise: String)(done: => Boolean): Unit = {
    val deadline = System.nanoTime + PatienceNs
    while (!done) {
      trial.check(System.nanoTime < deadline, otherwise)
      Thread.sleep(1L)
    }
  }

  private def follower(): StoreEngine = {
    val conf = new SQLConf
    conf.setConfString(Options.prefix + "memory.budget", "64m")
    val hadoop = new Configuration(false)
    hadoop.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID.toString)
    val id = StateStoreId("file:/nowhere/state", 0L, 0)
    new StoreEngine(new StoreContext(id, new StateStoreConf(conf), hadoop), follows = true)
  }

  /** Load a store whose rows all lie on disk. */
  private def load(engine: StoreEngine, rows: Int): Family =
    engine.diskLock.during(engine.synchronized {
      engine.status.beginLoad(): Unit
      engine.beginAs(new StoreLayout(KeyGroups(1, 1), 1, 0, "", None), isHeap = false)
      engine.tier.ensureOpen()
      val file = new File(engine.context.generationDir(engine.status.generation), "rows.sst")
      val writer = engine.disk.sstWriter(file)
      val value = Change.bytes("\u0000a row")
      (0 until rows).foreach { n =>
        // slot, family, version byte, key
        val key = Change.bytes(f"\u0000\u0000\u0000\u0000\u0000$n%08d")
        writer.put(key, 0, key.length, value, 0, value.length)
      }
      writer.finish()
      engine.disk.ingest(file)
      val shape = FamilyShape(FamilyKind.Point, internal = false, multi = false, plainRows = true)
      val family = engine.families.add("default", 0, shape, onDisk = true)
      engine.status.loadDone()
      family
    })
}
