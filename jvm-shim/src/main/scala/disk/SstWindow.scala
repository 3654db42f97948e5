package org.apache.spark.sql.millpond.disk

import java.io.{EOFException, File, IOException, RandomAccessFile}
import java.nio.MappedByteBuffer
import java.nio.channels.FileChannel

import org.apache.spark.sql.millpond.base.RowLimit
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** Reads a file from front to end. Unlike a channel's, its reads end with no interrupt. */
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
      if (read.length < math.max(SstWindow.WindowBytes, least))
        read = new Array[Byte](math.max(SstWindow.WindowBytes, RowLimit.bufferFor(least)))
      from = offset
      length = math.min(read.length.toLong, open.length - offset).toInt
      open.seek(offset)
      open.readFully(read, 0, length)
      if (length < least) throw new EOFException
    } catch { case e: IOException => throw MappedSst.lost(file, e) }

  /** Others wait for their turn with less. */
  def forget(): Unit = { read = Array.emptyByteArray; length = 0 }

  def close(): Unit = open.close()
}

private object SstWindow {
  private val WindowBytes = 64 << 10
}
