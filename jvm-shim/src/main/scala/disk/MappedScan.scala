package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.base.{MillpondException, RowLimit, SparkCompatibility}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** Walks over the files of a sorted run. It reads them through a window: through the mapping all
  * their pages would become resident.
  *
  * @param whereIs where a file is now, null if nobody knows; then the mapping has to do */
private[disk] final class SstCursor(run: SortedRun, whereIs: IndexedSst => File) {
  private val block = SstBlock.take()
  private var at = 0 // of the file
  private var number = 0 // of the block
  private var window: SstWindow = null
  var isValid = false

  def key: Array[Byte] = block.key
  def keyLength: Int = block.keyLength
  def valueAt: Long = block.valueAt
  def valueLength: Int = block.valueLength
  def isDeletion: Boolean = block.isDeletion

  def seekToFirst(): Unit = { open(0); load(0); next() }

  /** Go to the first entry that is not before a key. */
  def seek(target: Array[Byte]): Unit = {
    val isAhead = isValid && block.compare(target, target.length) <= 0
    if (!(isAhead && block.seek(target, target.length))) {
      val file = run.indexOf(target, target.length)
      val from = if (isAhead && file == at) number else 0
      open(file)
      load(lastBefore(target, from))
      isValid = block.seek(target, target.length)
      if (!isValid) next()
    }
  }

  /** The last block of the file that begins before a key, or the first one.
    * @param known a block that is not behind it */
  private def lastBefore(target: Array[Byte], known: Int): Int = {
    val sst = run.files(at).sst
    var low = known
    var high = sst.blocks - 1
    var step = 1 // most seeks go to a block that follows soon
    while (low < high) {
      val middle = math.min((low + high + 1) >>> 1, low + step)
      sst.load(block, middle)
      if (block.next() && block.compare(target, target.length) < 0) {
        low = middle
        step = math.min(2 * step, sst.blocks)
      } else {
        high = middle - 1
        step = sst.blocks
      }
    }
    low
  }

  private def open(file: Int): Unit = {
    leave()
    at = file
    val path = whereIs(run.files(file))
    if (path != null)
      try window = new SstWindow(path)
      // a compaction has replaced it, and nothing else has its name; or too many files are open
      catch { case _: MillpondException => window = null }
  }

  private def load(n: Int): Unit = {
    number = n
    run.files(at).sst.load(block, n, window)
  }

  def next(): Unit = {
    isValid = block.next()
    while (!isValid && hasMore) isValid = block.next()
  }

  /** Go on to the next block, if there is one. */
  private def hasMore: Boolean =
    if (number + 1 < run.files(at).sst.blocks) { load(number + 1); true }
    else if (at + 1 < run.files.length) { open(at + 1); load(0); true }
    else false

  private def leave(): Unit = if (window != null) { window.close(); window = null }

  /** Nobody uses it any more. */
  def close(): Unit = { isValid = false; leave(); SstBlock.giveBack(block) }
}

/** Merges the rows of mapped files, in key order. Of the entries of a key the newest one counts.
  *
  * @param cursors from the newest to the oldest
  * @param giveBack the files, at the first `close` */
private[disk] final class MappedScan(cursors: Array[SstCursor], giveBack: () => Unit)
    extends DiskScan {
  // ascending by key; of equal keys the newest first; those at their end are last
  private val order = cursors.clone()
  private val rank = cursors.indices.toArray
  private var last = new Array[Byte](256)
  private var lastLength = -1
  private var open = true

  override def seekToFirst(): Unit = position(_.seekToFirst())
  override def seek(target: Array[Byte]): Unit = position(_.seek(target))

  private def position(go: SstCursor => Unit): Unit = {
    cursors.indices.foreach { i => order(i) = cursors(i); rank(i) = i }
    cursors.foreach(go)
    var i = order.length - 2
    while (i >= 0) { sink(i); i -= 1 }
    lastLength = -1
    settle()
  }

  override def isValid: Boolean = order.length > 0 && order(0).isValid
  override def next(): Unit = { pass(); settle() }

  /** Leave the current key, which is remembered. */
  private def pass(): Unit = {
    val top = order(0)
    if (last.length < top.keyLength) last = new Array[Byte](RowLimit.bufferFor(top.keyLength))
    Bytes.copy(top.key, Bytes.ArrayOffset, last, Bytes.ArrayOffset, top.keyLength)
    lastLength = top.keyLength
    top.next()
    sink(0)
  }

  /** Go on to an entry that counts. */
  private def settle(): Unit =
    while (isValid && (isPassed || order(0).isDeletion))
      if (isPassed) { order(0).next(); sink(0) } else pass()

  /** Whether the current entry is older than one of the same key. */
  private def isPassed: Boolean = order(0).keyLength == lastLength &&
    Bytes.equal(order(0).key, Bytes.ArrayOffset, last, Bytes.ArrayOffset, lastLength)

  private def sink(from: Int): Unit = {
    val moved = order(from)
    val movedRank = rank(from)
    var i = from
    while (i + 1 < order.length && follows(moved, movedRank, order(i + 1), rank(i + 1))) {
      order(i) = order(i + 1)
      rank(i) = rank(i + 1)
      i += 1
    }
    order(i) = moved
    rank(i) = movedRank
  }

  private def follows(a: SstCursor, aRank: Int, b: SstCursor, bRank: Int): Boolean =
    if (!a.isValid || !b.isValid) b.isValid
    else {
      val c = Bytes.compare(a.key, Bytes.ArrayOffset, a.keyLength, b.key, Bytes.ArrayOffset,
        b.keyLength)
      c > 0 || (c == 0 && aRank > bRank)
    }

  override def key: Array[Byte] = java.util.Arrays.copyOf(order(0).key, order(0).keyLength)
  override def value: Array[Byte] = {
    val top = order(0)
    val bytes = new Array[Byte](top.valueLength)
    Bytes.copy(null, top.valueAt, bytes, Bytes.ArrayOffset, bytes.length)
    bytes
  }
  override def keyInto(buffer: ByteBuffer): Int = {
    val top = order(0)
    buffer.put(top.key, 0, math.min(top.keyLength, buffer.remaining)).flip()
    top.keyLength
  }
  override def valueInto(buffer: ByteBuffer): Int = {
    val top = order(0)
    val n = math.min(top.valueLength, buffer.remaining)
    Platform.copyMemory(null, top.valueAt, null,
      SparkCompatibility.addressOf(buffer) + buffer.position(), n.toLong)
    buffer.limit(buffer.position() + n): Unit
    top.valueLength
  }
  override def close(): Unit = if (open) {
    open = false
    cursors.foreach(_.close())
    giveBack()
  }
}
