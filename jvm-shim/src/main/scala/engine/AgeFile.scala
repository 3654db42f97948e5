package org.apache.spark.sql.millpond.engine

import java.io.{
  ByteArrayInputStream, DataInputStream, File, FileInputStream, IOException, SequenceInputStream
}
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}

import org.apache.spark.sql.millpond.base.{MillpondError, MillpondException, RowLimit}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.unsafe.Platform

/** Keys that were written at one age: a hint, since a row may have a younger age by now, or be
  * gone. They lie in a file on the local disk that is rebuilt from the rows, so nothing syncs it.
  * The last ones are in memory. */
private[engine] final class AgeFile(private val file: File) {
  private var buffer = new Array[Byte](256)
  private var size = 0
  private var written = 0L
  private var isMade = false
  private var keys = 0L

  def count: Long = keys

  def add(slot: Int, base: AnyRef, offset: Long, length: Int): Unit = {
    val bytes = AgeFile.Lead + length
    makeRoom(bytes)
    keys += 1
    val at = Bytes.ArrayOffset + size
    Platform.putShort(buffer, at, slot.toShort)
    Platform.putInt(buffer, at + 2, length)
    Bytes.copy(base, offset, buffer, at + AgeFile.Lead, length)
    size += bytes
  }

  /** Add all keys of another one, which are as old. */
  def addAll(other: AgeFile): Unit = {
    if (other.written > 0L)
      try {
        val in = new FileInputStream(other.file)
        try {
          val part = new Array[Byte](AgeFile.MostBuffered)
          var left = other.written
          while (left > 0L) {
            val n = in.readNBytes(part, 0, math.min(left, part.length.toLong).toInt)
            if (n == 0) throw new java.io.EOFException(s"${other.file} is too short")
            addBytes(part, n)
            left -= n
          }
        } finally in.close()
      } catch { case e: IOException => throw other.failed(e) }
    addBytes(other.buffer, other.size)
    keys += other.keys
  }

  private def addBytes(bytes: Array[Byte], length: Int): Unit = {
    makeRoom(length)
    System.arraycopy(bytes, 0, buffer, size, length)
    size += length
  }

  private def makeRoom(bytes: Int): Unit =
    if (size + bytes > buffer.length) {
      if (size + bytes > AgeFile.MostBuffered && size > 0) flush()
      if (bytes > buffer.length - size)
        buffer = java.util.Arrays.copyOf(buffer, RowLimit.bufferFor(size + bytes))
    }

  /** No more keys come for now: give memory back. */
  def rest(): Unit = if (size > AgeFile.MostResting) {
    flush()
    buffer = new Array[Byte](256)
  } else buffer = java.util.Arrays.copyOf(buffer, math.max(16, size))

  private def flush(): Unit =
    try {
      // a file that somebody deleted must not begin anew
      val channel = if (isMade) FileChannel.open(file.toPath, WRITE)
      else FileChannel.open(file.toPath, CREATE_NEW, WRITE)
      isMade = true
      try {
        val bytes = ByteBuffer.wrap(buffer, 0, size)
        // a write that failed may have left a part behind what counts
        while (bytes.hasRemaining) channel.write(bytes, written + bytes.position()): Unit
      } finally channel.close()
      written += size
      size = 0
    } catch { case e: IOException => throw failed(e) }

  private def failed(e: IOException): MillpondException = {
    val isLost = !file.getParentFile.isDirectory || written > 0L && !file.isFile
    val text = s"the file $file with ages of rows cannot be used: $e."
    if (isLost) MillpondError.ofFile("LOCAL_FILES_LOST", text, e)
    else MillpondError.ofLocalFile(text, e)
  }

  /** All keys, in the order in which they came. Nobody adds meanwhile. */
  def read(): AgeFile.Cursor =
    try new AgeFile.Cursor(if (written == 0L) buffered
      else new SequenceInputStream(
        new java.io.BufferedInputStream(new FileInputStream(file), AgeFile.MostBuffered),
        buffered), written + size, failed)
    catch { case e: IOException => throw failed(e) }

  private def buffered = new ByteArrayInputStream(buffer, 0, size)

  def delete(): Unit = {
    buffer = null
    if (isMade) file.delete(): Unit
  }
}

private[engine] object AgeFile {
  private val Lead = 6 // slot, size of the key
  private val MostBuffered = 64 << 10
  private val MostResting = 2 << 10

  /** @param bytes how many there must be */
  final class Cursor(in: java.io.InputStream, bytes: Long,
      failed: IOException => MillpondException) extends AutoCloseable {
    private val data = new DataInputStream(in)
    private val lead = new Array[Byte](Lead)
    private var left = bytes
    var slot = 0
    var key = new Array[Byte](64)
    var length = 0

    def next(): Boolean = left > 0L && {
      try {
        data.readFully(lead)
        slot = Platform.getShort(lead, Bytes.ArrayOffset) & 0xFFFF
        length = Platform.getInt(lead, Bytes.ArrayOffset + 2)
        if (key.length < length) key = new Array[Byte](RowLimit.bufferFor(length))
        data.readFully(key, 0, length)
      } catch { case e: IOException => throw failed(e) }
      left -= Lead + length
      true
    }

    override def close(): Unit = data.close()
  }
}
