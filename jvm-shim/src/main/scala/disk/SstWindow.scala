package org.apache.spark.sql.millpond.disk

import java.io.{EOFException, File, IOException, RandomAccessFile}
import java.nio.MappedByteBuffer
import java.nio.channels.{ClosedByInterruptException, FileChannel}

import org.apache.spark.sql.millpond.base.{MillpondError, RowLimit}
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

  /** Map the whole file. An interrupt of the thread closes the channel, so it waits. */
  def map(): MappedByteBuffer = {
    var isInterrupted = Thread.interrupted()
    var made: MappedByteBuffer = null
    try
      while (made == null)
        try made = mapped()
        catch { case _: ClosedByInterruptException => isInterrupted = Thread.interrupted() }
    catch { case e: IOException => close(); throw SstWindow.unmapped(file, e) }
    finally if (isInterrupted) Thread.currentThread.interrupt()
    made
  }

  private def mapped(): MappedByteBuffer = {
    val channel = new RandomAccessFile(file, "r").getChannel
    try channel.map(FileChannel.MapMode.READ_ONLY, 0L, open.length)
    finally channel.close()
  }

  def last(bytes: Int): Array[Byte] = {
    fill(open.length - bytes, bytes)
    java.util.Arrays.copyOf(read, bytes)
  }

  /** Copy bytes to native memory. A merge has a window for each of its files, so those of a large
    * block do not become one array. */
  def copy(offset: Long, to: Long, bytes: Int): Unit = {
    var done = 0
    while (done < bytes) {
      val piece = math.min(bytes - done, SstWindow.MostBytes)
      copyPiece(offset + done, to + done, piece)
      done += piece
    }
  }

  private def copyPiece(offset: Long, to: Long, bytes: Int): Unit = {
    if (offset < from || offset + bytes > from + length) fill(offset, bytes)
    Platform.copyMemory(read, Bytes.ArrayOffset + offset - from, null, to, bytes.toLong)
  }

  private def fill(offset: Long, least: Int): Unit =
    try {
      val goesOn = offset >= from && offset <= from + length
      val wanted = if (goesOn) math.min(2 * length, SstWindow.MostBytes) else 0
      val most = math.max(math.max(wanted, SstWindow.FirstBytes), least)
      if (read.length < most)
        read = new Array[Byte](
          if (most == least) math.min(RowLimit.bufferFor(least), SstWindow.MostBytes) else most)
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

  private def unmapped(file: File, e: IOException): Exception = e.getCause match {
    case refused: OutOfMemoryError =>
      MillpondError.of("MEMORY_EXHAUSTED", s"the sorted file $file cannot be mapped: $e",
        hint = "Raise the system's limit for the mappings of a process, vm.max_map_count.",
        cause = refused)
    case _ => MappedSst.lost(file, e)
  }
}
