package org.apache.spark.sql.millpond

import java.io.{EOFException, File, RandomAccessFile}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.FileChannel
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}
import java.util.zip.CRC32

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import com.github.luben.zstd.Zstd
import net.jpountz.lz4.LZ4Factory


/** Codecs of changelog blocks; numbers are durable. */
object Codec {
  val None = 0
  val Lz4 = 1
  val Zstd = 2
  def of(name: String): Int = name match { case "none" => None; case "lz4" => Lz4; case "zstd" => Zstd }
}

/** Writes one changelog file (docs/reference/format.md): records go into a raw block, full blocks are compressed into the file.
  * `finish` or `discard` must be called. */
final class ChangelogWriter(file: File, header: ObjectNode, codec: Int) {
  import ChangelogFormat._

  private val channel = FileChannel.open(file.toPath, CREATE_NEW, WRITE)
  private var out = ByteBuffer.allocate(64 << 10).order(ByteOrder.LITTLE_ENDIAN)
  private var raw = new Array[Byte](BlockBytes + 4096)
  private var rawSize = 0
  private var blockRecords = 0
  private var records = 0L
  private var puts = 0L
  private var rawTotal = 0L
  private var compressed = new Array[Byte](0)
  private val crc = new CRC32

  locally {
    val json = Json.bytes(header)
    ensure(12 + json.length + 4)
    val start = out.position()
    out.put(Magic).putShort(FormatVersion).putShort(0.toShort).putInt(json.length).put(json)
    putCrc(start)
  }

  def recordCount: Long = records

  /** The start of a record: op and physical key `[slot][family][version byte if any][key]`. */
  private def begin(op: Byte, slot: Int, family: Int, versionByte: Boolean, base: AnyRef, offset: Long, length: Int, room: Int): Unit = {
    val lead = if (versionByte) 5 else 4
    if (rawSize > 0 && rawSize + lead + length + room + 16 > BlockBytes) flushBlock()
    reserve(lead + length + room + 16)
    raw(rawSize) = op
    rawSize += 1
    varint(lead + length)
    raw(rawSize) = (slot >>> 8).toByte
    raw(rawSize + 1) = slot.toByte
    raw(rawSize + 2) = (family >>> 8).toByte
    raw(rawSize + 3) = family.toByte
    if (versionByte) raw(rawSize + 4) = 0
    rawSize += lead
    Bytes.copy(base, offset, raw, Bytes.ArrayOffset + rawSize, length)
    rawSize += length
    blockRecords += 1
    records += 1
  }

  def put(slot: Int, family: Int, keyVersionByte: Boolean, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueVersionByte: Boolean, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    keyed(Op.Put, slot, family, keyVersionByte, keyBase, keyOffset, keyLength, valueVersionByte, valueBase, valueOffset, valueLength)
    puts += 1
  }

  private def keyed(op: Byte, slot: Int, family: Int, keyVersionByte: Boolean, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueVersionByte: Boolean, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    begin(op, slot, family, keyVersionByte, keyBase, keyOffset, keyLength, valueLength + 1)
    val lead = if (valueVersionByte) 1 else 0
    varint(valueLength + lead)
    if (valueVersionByte) { raw(rawSize) = 0; rawSize += 1 }
    Bytes.copy(valueBase, valueOffset, raw, Bytes.ArrayOffset + rawSize, valueLength)
    rawSize += valueLength
  }

  /** Bytes appended to the value of a key; such keys and values carry their version bytes themselves. */
  def merge(slot: Int, family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int,
      keyVersionByte: Boolean): Unit =
    keyed(Op.Merge, slot, family, keyVersionByte, keyBase, keyOffset, keyLength, valueVersionByte = false, valueBase, valueOffset, valueLength)

  def delete(slot: Int, family: Int, keyVersionByte: Boolean, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit =
    begin(Op.Delete, slot, family, keyVersionByte, keyBase, keyOffset, keyLength, 0)

  /** Completes the file (not yet durable: the agent syncs it). Returns its size in bytes. */
  def finish(): Long = {
    if (rawSize > 0) flushBlock()
    ensure(36)
    val start = out.position()
    out.putInt(0).put(FooterMagic).putLong(records).putLong(puts).putLong(rawTotal)
    putCrc(start)
    drain()
    val size = channel.position()
    channel.close()
    size
  }

  def discard(): Unit = { channel.close(); file.delete(); () }

  private def flushBlock(): Unit = {
    var used = codec
    var stored = raw
    var storedSize = rawSize
    if (codec != Codec.None) {
      val size = compress()
      if (size < rawSize) { stored = compressed; storedSize = size } else used = Codec.None
    }
    ensure(20 + storedSize)
    val start = out.position()
    out.putInt(rawSize).putInt(storedSize).putInt(blockRecords).put(used.toByte).put(0.toByte).put(0.toByte).put(0.toByte)
    crc.reset()
    crc.update(out.array, start, 16)
    crc.update(stored, 0, storedSize)
    out.putInt(crc.getValue.toInt).put(stored, 0, storedSize)
    rawTotal += rawSize
    rawSize = 0
    blockRecords = 0
    if (out.position() > DrainBytes) drain()
  }

  private def compress(): Int =
    if (codec == Codec.Lz4) {
      val compressor = LZ4Factory.fastestInstance().fastCompressor()
      grow(compressor.maxCompressedLength(rawSize))
      compressor.compress(raw, 0, rawSize, compressed, 0, compressed.length)
    } else {
      grow(Zstd.compressBound(rawSize.toLong).toInt)
      val n = Zstd.compressByteArray(compressed, 0, compressed.length, raw, 0, rawSize, 1)
      if (Zstd.isError(n)) throw new IllegalStateException(s"zstd: ${Zstd.getErrorName(n)}")
      n.toInt
    }

  private def grow(size: Int): Unit = if (compressed.length < size) compressed = new Array[Byte](size)

  private def reserve(size: Int): Unit =
    if (rawSize + size > raw.length) raw = java.util.Arrays.copyOf(raw, math.max(raw.length * 2, rawSize + size))

  private def varint(n: Int): Unit = {
    var v = n
    while ((v & ~0x7F) != 0) { raw(rawSize) = ((v & 0x7F) | 0x80).toByte; rawSize += 1; v >>>= 7 }
    raw(rawSize) = v.toByte
    rawSize += 1
  }

  private def putCrc(start: Int): Unit = {
    crc.reset()
    crc.update(out.array, start, out.position() - start)
    out.putInt(crc.getValue.toInt)
    ()
  }

  private def ensure(size: Int): Unit = if (out.remaining < size) {
    val bigger = ByteBuffer.allocate(math.max(out.capacity * 2, out.position() + size)).order(ByteOrder.LITTLE_ENDIAN)
    out.flip()
    bigger.put(out)
    out = bigger
  }

  private def drain(): Unit = {
    out.flip()
    while (out.hasRemaining) channel.write(out)
    out.clear()
    ()
  }
}

/** Kinds of records; numbers are durable. */
object Op {
  val Put: Byte = 1
  val Delete: Byte = 2
  val Merge: Byte = 3
  val DeleteRange: Byte = 4
}

object ChangelogFormat {
  val Magic: Array[Byte] = "MPCL".getBytes(UTF_8)
  val FooterMagic: Array[Byte] = "MPCE".getBytes(UTF_8)
  val FormatVersion: Short = 1
  val BlockBytes: Int = 128 << 10
  val DrainBytes: Int = 4 << 20
  private[millpond] val MaxBlockBytes = 1 << 30
}

/** Takes the records of a changelog in order. Key and value lie in `block`. */
trait RecordSink {
  def record(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int, valueLength: Int): Unit
}

/** Reads one changelog file and checks every sum; any deviation is `MILLPOND_CHANGELOG_DAMAGED` naming the file. */
final class ChangelogReader(path: String) {
  import ChangelogFormat._

  private def damaged(why: String): Nothing = throw MillpondError.changelogDamaged(path, why)

  /** The header alone. */
  def header(): JsonNode = open(readHeader)

  /** Feed all records to `sink`; returns the header. A fresh array is used for every block, so a sink may keep references. */
  def read(sink: RecordSink): JsonNode = open { file =>
    val header = readHeader(file)
    readBlocks(file, sink)
    header
  }

  private def open(action: RandomAccessFile => JsonNode): JsonNode = {
    val file =
      try new RandomAccessFile(path, "r")
      catch { case e: java.io.FileNotFoundException => throw MillpondError.changelogMissing(path, e) }
    try action(file)
    catch { case _: EOFException => damaged("it ends too early") }
    finally file.close()
  }

  private def readFully(file: RandomAccessFile, n: Int): ByteBuffer = {
    // a damaged length must not make us allocate more than the file can hold
    if (n < 0 || n > file.length() - file.getFilePointer) damaged("it ends too early")
    val bytes = new Array[Byte](n)
    file.readFully(bytes)
    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
  }

  private def readHeader(file: RandomAccessFile): JsonNode = {
    val crc = new CRC32
    val lead = readFully(file, 12)
    if (!java.util.Arrays.equals(lead.array.take(4), Magic)) damaged("it does not begin with the magic bytes")
    val format = lead.getShort(4)
    if (format != FormatVersion || lead.getShort(6) != 0) throw MillpondError.formatTooNew(path, format.toInt)
    val json = readFully(file, lead.getInt(8))
    crc.update(lead.array)
    crc.update(json.array)
    if (readFully(file, 4).getInt != crc.getValue.toInt) damaged("the checksum of its header is wrong")
    Json.parse(json.array)
  }

  private def readBlocks(file: RandomAccessFile, sink: RecordSink): Unit = {
    val crc = new CRC32
    var records = 0L
    var rawTotal = 0L
    while (true) {
      val lead = readFully(file, 4)
      val rawBytes = lead.getInt(0)
      if (rawBytes == 0) {
        val footer = readFully(file, 32)
        crc.reset()
        crc.update(lead.array)
        crc.update(footer.array, 0, 28)
        if (footer.getInt(28) != crc.getValue.toInt || !java.util.Arrays.equals(footer.array.take(4), FooterMagic)) damaged("the checksum of its footer is wrong")
        if (footer.getLong(4) != records || footer.getLong(20) != rawTotal) damaged("its footer counts other records than it holds")
        if (file.getFilePointer != file.length()) damaged("something follows its footer")
        return
      }
      val rest = readFully(file, 16)
      val storedBytes = rest.getInt(0)
      val stored = readFully(file, storedBytes)
      crc.reset()
      crc.update(lead.array)
      crc.update(rest.array, 0, 12)
      crc.update(stored.array)
      if (rest.getInt(12) != crc.getValue.toInt) damaged("the checksum of a block is wrong")
      if (rawBytes < 0 || rawBytes > MaxBlockBytes) damaged("the size of a block is impossible")
      records += feed(decompress(rest.get(8).toInt, stored.array, rawBytes), rest.getInt(4), sink)
      rawTotal += rawBytes
    }
  }

  private def decompress(codec: Int, stored: Array[Byte], rawBytes: Int): Array[Byte] = codec match {
    case Codec.None => if (stored.length != rawBytes) damaged("the size of a block is wrong"); stored
    case Codec.Lz4 =>
      val raw = new Array[Byte](rawBytes)
      val n =
        try LZ4Factory.fastestInstance().safeDecompressor().decompress(stored, 0, stored.length, raw, 0)
        catch { case _: net.jpountz.lz4.LZ4Exception => -1 }
      if (n != rawBytes) damaged("a block does not decompress")
      raw
    case Codec.Zstd =>
      val raw = new Array[Byte](rawBytes)
      val n = Zstd.decompressByteArray(raw, 0, rawBytes, stored, 0, stored.length)
      if (Zstd.isError(n) || n != rawBytes) damaged("a block does not decompress")
      raw
    case _ => damaged("a block has an unknown codec")
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
      if (op < Op.Put || op > Op.DeleteRange) damaged("a record has an unknown kind")
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
