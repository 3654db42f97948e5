package org.apache.spark.sql.millpond.disk

import java.io.{EOFException, File, IOException, RandomAccessFile}
import java.nio.MappedByteBuffer
import java.nio.channels.FileChannel

import org.apache.spark.sql.millpond.base.RowLimit
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** Reads a file from front to end, more at once the longer it goes on: many scans end early. Unlike
  * a channel's, its reads end with no interrupt. */
private[disk] final class SstWindow(file: File) {
  private val open =
    try new RandomAccessFile(file, "r")
    catch { case e: IOException => throw MappedSst.lost(file, e) }
  private var read = Array.emptyByteArray
  private var from = 0L
  private var length = 0

  def map(): MappedByteBuffer =
    try open.getChannel.map(FileChannel.MapMode.READ_ONLY, 0L, open.length)
    catch { case e: IOException => close(); throw MappedSst.lost(file, e) }

  def last(bytes: Int): Array[Byte] = {
    fill(open.length - bytes, bytes)
    java.util.Arrays.copyOf(read, bytes)
  }

  def copy(offset: Long, to: Long, bytes: Int): Unit = {
    if (offset < from || offset + bytes > from + length) fill(offset, bytes)
    Platform.copyMemory(read, Bytes.ArrayOffset + offset - from, null, to, bytes.toLong)
  }

  private def fill(offset: Long, least: Int): Unit =
    try {
      val goesOn = offset >= from && offset <= from + length
      val wanted = if (goesOn) math.min(2 * length, SstWindow.MostBytes) else 0
      val most = math.max(math.max(wanted, SstWindow.FirstBytes), least)
      if (read.length < most)
        read = new Array[Byte](if (most == least) RowLimit.bufferFor(least) else most)
      from = offset
      length = math.min(most.toLong, open.length - offset).toInt
      open.seek(offset)
      open.readFully(read, 0, length)
      if (length < least) throw new EOFException
    } catch { case e: IOException => throw MappedSst.lost(file, e) }

  /** Others wait for their turn with less. */
  def forget(): Unit = { read = Array.emptyByteArray; length = 0 }

  def close(): Unit = open.close()
}

private object SstWindow {
  private val FirstBytes = 8 << 10
  private val MostBytes = 64 << 10
}
