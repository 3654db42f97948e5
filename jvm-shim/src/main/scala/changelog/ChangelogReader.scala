package org.apache.spark.sql.millpond.changelog

import java.io.{EOFException, IOException, RandomAccessFile}
import java.nio.{ByteBuffer, ByteOrder}
import java.util.zip.CRC32

import com.fasterxml.jackson.databind.JsonNode
import com.github.luben.zstd.{Zstd, ZstdException}
import net.jpountz.lz4.LZ4Factory

import org.apache.spark.sql.millpond.base.{Json, MillpondError, Op, Seams}

/** Takes the records of a changelog in order. Key and value lie in `block`. */
trait RecordSink {
  def record(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int,
      valueLength: Int): Unit
}

/** A changelog that is read block by block. `next` feeds the records of one block; false if there
  * is none left. It notices every deviation up to the end of the block. */
private[millpond] final class ChangelogCursor(val header: JsonNode,
    readBlock: RecordSink => Boolean, skipBlock: () => Boolean, closeFile: () => Unit) {
  def next(sink: RecordSink): Boolean = readBlock(sink)
  /** Skip so many blocks without reading them. */
  def skip(blocks: Int): Unit = {
    var left = blocks
    while (left > 0 && skipBlock()) left -= 1
  }
  def close(): Unit = closeFile()
}

/** Reads one changelog file and checks every sum; any deviation is `MILLPOND_CHANGELOG_DAMAGED`
  * naming the file. */
final class ChangelogReader(path: String) {
  import ChangelogFormat._

  private def damaged(why: String): Nothing = throw MillpondError.changelogDamaged(path, why)

  /** The header alone. */
  def header(): JsonNode = open(readHeader)

  /** Feed all records to `sink`; returns the header. A fresh array is used for every block, so a
    * sink may keep references. */
  def read(sink: RecordSink): JsonNode = open { file =>
    val header = readHeader(file)
    readBlocks(file, sink)
    header
  }

  /** The file block by block; the caller closes the cursor. */
  def cursor(): ChangelogCursor = {
    val file = openFile()
    var begun = false
    try {
      val seen = new Progress
      val header = whole(readHeader(file))
      begun = true
      new ChangelogCursor(header, sink => whole(readBlock(file, sink, seen)),
        () => whole(skipBlock(file, seen)), () => file.close())
    } finally if (!begun) file.close()
  }

  private def openFile(): RandomAccessFile =
    try new RandomAccessFile(path, "r")
    catch {
      case e: java.io.FileNotFoundException if MillpondError.isOutOfFiles(e) =>
        throw MillpondError.ofFile("STORAGE_UNAVAILABLE",
          s"the changelog $path cannot be opened: ${e.getMessage}.", e)
      case e: java.io.FileNotFoundException => throw MillpondError.changelogMissing(path, e)
    }

  private def whole[T](action: => T): T =
    try action
    catch { case _: EOFException => damaged("it ends too early") }

  private def open(action: RandomAccessFile => JsonNode): JsonNode = {
    val file = openFile()
    try action(file)
    catch { case _: EOFException => damaged("it ends too early") }
    finally file.close()
  }

  private def readFully(file: RandomAccessFile, n: Int): ByteBuffer =
    try {
      Seams.at("changelog.read")
      // a damaged length must not make the reader allocate more than the file can hold
      if (n < 0 || n > file.length() - file.getFilePointer) damaged("it ends too early")
      val bytes = new Array[Byte](n)
      file.readFully(bytes)
      ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    } catch {
      case e: EOFException => throw e
      case e: IOException =>
        val why = s"the changelog $path cannot be read: ${e.getMessage}."
        throw MillpondError.of("STORAGE_UNAVAILABLE", why, cause = e)
    }

  private def readHeader(file: RandomAccessFile): JsonNode = {
    val crc = new CRC32
    val lead = readFully(file, 12)
    if (!java.util.Arrays.equals(lead.array.take(4), Magic))
      damaged("it does not begin with the magic bytes")
    val format = lead.getShort(4)
    if (format != FormatVersion)
      throw MillpondError.formatTooNew(path,
        s"has format $format, this Millpond reads format $FormatVersion")
    val json = readFully(file, lead.getInt(8))
    crc.update(lead.array)
    crc.update(json.array)
    if (readFully(file, 4).getInt != crc.getValue.toInt)
      damaged("the checksum of its header is wrong")
    val unknown = lead.getShort(6) & ~Repeats & 0xFFFF
    if (unknown != 0)
      throw MillpondError.formatTooNew(path,
        s"has the flags 0x${unknown.toHexString}, which this Millpond does not know")
    val header =
      try Json.parse(json.array)
      catch { case _: IOException => null }
    if (header == null || !header.isObject) damaged("its header is no JSON object")
    header
  }

  private final class Progress {
    var records = 0L
    var rawTotal = 0L
  }

  private def readBlocks(file: RandomAccessFile, sink: RecordSink): Unit = {
    val seen = new Progress
    while (readBlock(file, sink, seen)) ()
  }

  /** One block, or the footer and false. */
  private def readBlock(file: RandomAccessFile, sink: RecordSink, seen: Progress): Boolean = {
    val crc = new CRC32
    val lead = readFully(file, 4)
    val rawBytes = lead.getInt(0)
    crc.update(lead.array)
    if (rawBytes == 0) {
      val footer = readFully(file, 32)
      crc.update(footer.array, 0, 28)
      if (footer.getInt(28) != crc.getValue.toInt || !java.util.Arrays.equals(footer.array.take(4),
          FooterMagic))
        damaged("the checksum of its footer is wrong")
      if (footer.getLong(4) != seen.records || footer.getLong(20) != seen.rawTotal)
        damaged("its footer counts other records than it holds")
      if (file.getFilePointer != file.length()) damaged("something follows its footer")
      false
    } else {
      val rest = readFully(file, 16)
      val storedBytes = rest.getInt(0)
      val stored = readFully(file, storedBytes)
      crc.update(rest.array, 0, 12)
      crc.update(stored.array)
      if (rest.getInt(12) != crc.getValue.toInt) damaged("the checksum of a block is wrong")
      val codec = rest.get(8).toInt
      // check before the allocation: a few bytes must not make an executor allocate a gigabyte
      if (rawBytes < 0 || rawBytes > math.min(MaxBlockBytes.toLong,
          mostOfAByte(codec) * storedBytes))
        damaged(s"$storedBytes bytes of a block cannot stand for ${rawBytes.toLong & 0xFFFFFFFFL}")
      seen.records += feed(decompress(codec, stored.array, rawBytes), rest.getInt(4), sink)
      seen.rawTotal += rawBytes
      true
    }
  }

  /** Pass a block by its lead; false before the footer. */
  private def skipBlock(file: RandomAccessFile, seen: Progress): Boolean = {
    val start = file.getFilePointer
    val rawBytes = readFully(file, 4).getInt(0)
    if (rawBytes == 0) { file.seek(start); false }
    else {
      val rest = readFully(file, 16)
      val end = file.getFilePointer + rest.getInt(0)
      if (rawBytes < 0 || rest.getInt(0) < 0 || rest.getInt(4) < 0 || end > file.length)
        damaged("it ends too early")
      file.seek(end)
      seen.records += rest.getInt(4)
      seen.rawTotal += rawBytes
      true
    }
  }

  private def decompress(codec: Int, stored: Array[Byte], rawBytes: Int): Array[Byte] =
    codec match {
      case Codec.None =>
        if (stored.length != rawBytes) damaged("the size of a block is wrong"); stored
      case Codec.Lz4 =>
        val raw = new Array[Byte](rawBytes)
        val n =
          try LZ4Factory.fastestInstance().safeDecompressor().decompress(stored, 0, stored.length,
              raw, 0)
          catch { case _: net.jpountz.lz4.LZ4Exception => -1 }
        if (n != rawBytes) damaged("a block does not decompress")
        raw
      case Codec.Zstd =>
        val said = Zstd.getFrameContentSize(stored) // negative: the frame does not tell
        if (said >= 0 && said != rawBytes) damaged("the size of a block is wrong")
        val raw = new Array[Byte](rawBytes)
        val n =
          try Zstd.decompressByteArray(raw, 0, rawBytes, stored, 0, stored.length)
          catch { case _: ZstdException => -1L }
        if (n != rawBytes) damaged("a block does not decompress")
        raw
      case _ =>
        throw MillpondError.formatTooNew(path,
          s"has a block of codec $codec, which this Millpond does not know")
    }

  private def feed(block: Array[Byte], count: Int, sink: RecordSink): Int = {
    var at = 0
    var n = 0
    def varint(): Int = {
      var result = 0
      var shift = 0
      var b = 0
      do {
        if (at >= block.length || shift > 28) damaged("a record runs over its block")
        b = block(at).toInt
        at += 1
        result |= (b & 0x7F) << shift
        shift += 7
      } while ((b & 0x80) != 0)
      if (result < 0 || result > block.length - at) damaged("a record runs over its block")
      result
    }
    while (at < block.length) {
      val op = block(at)
      at += 1
      if (op < Op.Put || op > Op.Merge) damaged("a record has an unknown kind")
      val keyLength = varint()
      val keyAt = at
      if (keyLength < 4) damaged("a key is too short")
      at += keyLength
      var valueLength = -1
      var valueAt = 0
      if (op != Op.Delete) { valueLength = varint(); valueAt = at; at += valueLength }
      sink.record(op, block, keyAt, keyLength, valueAt, valueLength)
      n += 1
    }
    if (n != count) damaged("a block holds other records than it says")
    n
  }
}
