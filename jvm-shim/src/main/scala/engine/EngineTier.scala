package org.apache.spark.sql.millpond.engine

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.disk.{Composer, Flush, PhysicalKeys}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.KeyCount

/** What an engine does with its disk tier as a whole. The tier itself knows no engine. */
private[engine] object EngineTier {

  /** @param described `db` of the restore plan, with `sources`. `engine.diskDir` becomes the new
    * disk tier, which is open. */
  def compose(engine: StoreEngine, described: JsonNode): Unit =
    Composer.compose(described, Shared.disk(engine.context.options)) { (disk, dir) =>
      engine.disk = disk
      engine.diskDir = dir
    }

  /** The disk tier takes over the rows of its sources. Callers hold `diskLock`. */
  def settle(engine: StoreEngine, giveWay: () => Unit): Unit = {
    Composer.settle(engine.disk, engine.context.generationDir(engine.generation), giveWay) { work =>
      engine.synchronized(work())
    }
    engine.synchronized(if (!engine.isRead) engine.disk.closeEmptied())
  }

  /** A flush into the disk tier of a store, which is open. Callers hold `diskLock`. */
  def flush(engine: StoreEngine, giveWay: () => Unit = () => ()): Flush =
    new Flush(engine.disk, engine.context.generationDir(engine.generation),
      Flush.mostBytes(engine.budget), giveWay)

  /** Count the live keys of a store that a rescale put together: those of memory, and those of the
    * disk tier that memory does not know. */
  def count(engine: StoreEngine): KeyCount = {
    val counted = KeyCount.empty(engine.layout)
    engine.families.values.forEach { f =>
      if (!f.shape.internal) {
        val records = f.table.all()
        var record = records.next()
        while (record != 0L) {
          if (f.table.isPresent(record)) counted.add(f.table.slotOf(record), 1)
          record = records.next()
        }
      }
    }
    if (engine.disk != null) {
      val rows =
        new PhysicalKeys(engine.disk.iterator(readAhead = true), engine.families.values.asScala)
      try
        while (rows.next()) {
          val f = rows.family
          if (f != null && !f.shape.internal && f.table.find(null, rows.at, rows.length,
              Bytes.hash(null, rows.at, rows.length)) == 0L)
            counted.add(rows.slot, 1)
        }
      finally rows.close()
    }
    counted
  }
}
