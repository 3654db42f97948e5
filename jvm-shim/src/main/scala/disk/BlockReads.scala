package org.apache.spark.sql.millpond.disk

import java.io.{File, IOException, RandomAccessFile}
import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.sql.millpond.base.{RowLimit, Seams}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** Reads single blocks of mapped files for one thread, in the way that costs less.
  *
  * A page that the system has in memory is read fastest through the mapping. For one that it lacks
  * it also reads what lies around, hundreds of kilobytes, and drops as much where its memory is
  * short. There a read of the file alone is better. So this looks at how long reads take. */
private[disk] final class BlockReads {
  import BlockReads._

  private var single = false
  private var fast = Few // of the reads that it looked at, those since the last slow one
  private var reads = 0
  private var page = Array.emptyByteArray

  /** Copy bytes of a file to native memory. */
  def copy(file: MappedSst, offset: Long, to: Long, length: Int): Unit = {
    if (RowLimit.isExcess(page.length, length)) page = Array.emptyByteArray
    reads += 1
    if (!single && reads % LookEvery != 0) file.copyMapped(offset, to, length)
    else {
      val start = System.nanoTime
      if (!(single && file.single.copy(offset, to, pageFor(length), length)))
        file.copyMapped(offset, to, length)
      took(System.nanoTime - start, length)
    }
  }

  private[disk] def isSingle: Boolean = single
  private[disk] def roomBytes: Int = page.length

  private[disk] def took(ns: Long, bytes: Int): Unit =
    if (ns <= Seams.stretch("disk.slow", SlowNs + bytes / BytesOfNs)) {
      if (fast < Many) fast += 1 else single = false
    } else {
      if (fast < Few) single = true
      fast = 0
    }

  private def pageFor(length: Int): Array[Byte] = {
    if (page.length < length) page = new Array[Byte](RowLimit.bufferFor(length))
    page
  }
}

private object BlockReads {
  // a copy from memory takes a microsecond, and no disk less than this
  private val SlowNs = 40_000L
  private val BytesOfNs = 2
  // one slow read may be a thread that had to wait for a processor; two that soon are not
  private val Few = 16
  private val Many = 1024
  private val LookEvery = 8 // through the mapping: the clock is a tenth of a read
}

/** Reads a sorted file whose mapping costs too much. It opens the file when it is first asked, and
  * closes it when a pass of maintenance finds that nobody has asked since the one before.
  *
  * @param identity of the file, whatever its name is; null: it is not known
  * @param first where it is as long as nobody says otherwise */
private[disk] final class SingleReads(identity: AnyRef, first: File) {
  /** Where the file is now. */
  @volatile var place: File = first
  private var open: RandomAccessFile = null
  private var isUsed = false
  private var isClosed = false

  /** Returns false if the mapping has to do: a compaction has replaced the file, too many are open,
    * or the read failed, and then the mapping's error tells more.
    * @param by way of this array */
  def copy(offset: Long, to: Long, by: Array[Byte], length: Int): Boolean = synchronized {
    if (open == null && !isClosed) open = SingleReads.open(place, identity)
    open != null && {
      isUsed = true
      try {
        open.seek(offset)
        open.readFully(by, 0, length)
        Platform.copyMemory(by, Bytes.ArrayOffset, null, to, length.toLong)
        true
      } catch { case _: IOException => shut(); false }
    }
  }

  /** A pass of maintenance. */
  def rest(): Unit = synchronized { if (!isUsed) shut(); isUsed = false }

  def close(): Unit = synchronized { isClosed = true; shut() }

  private def shut(): Unit = if (open != null) {
    open.close()
    open = null
    SingleReads.openFiles.decrementAndGet(): Unit
  }
}

private[disk] object SingleReads {
  // of the JVM: sockets and Spark's files need some, too
  private val MostFiles = 1000
  private[disk] val openFiles = new AtomicInteger

  /** Null: the file is not there, or too many are open. */
  private def open(place: File, identity: AnyRef): RandomAccessFile =
    if (openFiles.incrementAndGet() > MostFiles) refused()
    else
      try {
        val made = new RandomAccessFile(place, "r")
        // another store may have taken the folder over, and RocksDB's names with it
        if (MappedSst.identityOf(place).exists(_ == identity)) made
        else { made.close(); refused() }
      } catch { case _: IOException => refused() }

  private def refused(): RandomAccessFile = { openFiles.decrementAndGet(): Unit; null }
}
