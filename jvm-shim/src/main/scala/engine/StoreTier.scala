package org.apache.spark.sql.millpond.engine

import java.io.File

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.base.{LocalDirs, MillpondException}
import org.apache.spark.sql.millpond.disk.{Composer, DiskTier, Flush, PhysicalKeys}
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}
import org.apache.spark.sql.millpond.rows.{KeyCount, StoreLayout}

/** The disk tier of a store, and its folder. The tier may be absent: a store with little state has
  * none yet, one with the backend heap has one only while a snapshot is made.
  *
  * Callers hold `diskLock`. What opens, closes or replaces the tier takes `monitor`, the store's
  * own, since rows are read under it.
  *
  * @param isRead whether somebody reads the tier row by row */
private[engine] final class StoreTier(monitor: AnyRef, context: StoreContext, status: StoreStatus,
    families: Families, budget: MemoryBudget, isRead: () => Boolean) {
  private var open: DiskTier = null
  private var folder: File = null // of this generation, null while it has none

  /** The open tier, or null. */
  def disk: DiskTier = open
  def isOpen: Boolean = open != null

  /** Open the tier, a new one if there is none. */
  def ensureOpen(): Unit = monitor.synchronized {
    if (open == null) {
      // RocksDB would create an empty one, and the next snapshot would lack all rows
      if (folder != null) DiskTier.checkFolder(folder)
      val dir = if (folder != null) folder else new File(workDir, s"db-${status.generation}")
      try open = new DiskTier(dir, Shared.disk(context.options))
      // delete a new tier that failed to open: the next try begins anew
      catch { case e: MillpondException => if (folder == null) LocalDirs.delete(dir); throw e }
      folder = dir
    }
  }

  /** Open a tier that the agent laid out. */
  def openAt(dir: File): Unit = monitor.synchronized {
    folder = dir
    ensureOpen()
  }

  /** Put the tier together from those of other partitions, and open it.
    * @param described `db` of the restore plan, with `sources` */
  def compose(described: JsonNode): Unit =
    Composer.compose(described, Shared.disk(context.options)) { (disk, dir) =>
      monitor.synchronized {
        open = disk
        folder = dir
      }
    }

  /** The tier takes over the rows of its sources. */
  def settle(): Unit = {
    Composer.settle(open, workDir)(work => monitor.synchronized(work()))
    monitor.synchronized(if (!isRead()) open.closeEmptied())
  }

  /** Begin to make what helps reads of the tier, which is open. Callers hold the monitor too. */
  def beginLookup(): Unit = open.lookup.begin(budget)

  /** Memory of what helps reads. Callers need no lock. */
  def lookupBytes: Long = {
    val tier = open
    if (tier == null) 0L else tier.lookup.usedBytes
  }

  /** A flush into the tier, which is open. */
  def flush(): Flush =
    new Flush(open, workDir, Flush.mostBytes(budget))

  def close(): Unit = monitor.synchronized(if (open != null) { open.close(); open = null })

  /** Close the tier. The next one is another. */
  def forget(): Unit = monitor.synchronized {
    close()
    folder = null
  }

  /** Count the live keys of a store whose version says no number: those of memory, and those of the
    * tier that memory does not know. */
  def count(layout: StoreLayout): KeyCount = {
    val counted = KeyCount.empty(layout)
    families.values.forEach { f =>
      if (!f.shape.internal) {
        val records = f.table.all()
        var record = records.next()
        while (record != 0L) {
          if (f.table.isPresent(record)) counted.add(f.table.slotOf(record), 1)
          record = records.next()
        }
      }
    }
    if (isOpen) {
      val rows = new PhysicalKeys(open.iterator(readAhead = true), families.all)
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

  private def workDir: File = context.generationDir(status.generation)
}
