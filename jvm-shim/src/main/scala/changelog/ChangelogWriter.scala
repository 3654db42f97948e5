package org.apache.spark.sql.millpond.changelog

import java.io.File
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.FileChannel
import java.nio.file.StandardOpenOption.{CREATE_NEW, READ, WRITE}
import java.util.zip.CRC32

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.millpond.base.{Json, MillpondError, Op, RowLimit, Seams}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Family, FamilyKind}

/** Writes one changelog file (docs/reference/format.md). Records go into a raw block. The
  * writer compresses each full block into the file. Callers must call `finish` or `discard`.
  *
  * A file may also grow while its batch runs, before anybody knows its header. Then it begins with
  * room for one. Between two parts, `pause` gives the buffers back.
  * @param headBytes room for the header, and for what the file has around it */
final class ChangelogWriter private (first: File, codec: Int, headBytes: Int) {
  import ChangelogFormat._

  private var current = first
  private var channel = FileChannel.open(first.toPath, CREATE_NEW, READ, WRITE)
  private var scratch: ChangelogScratch = null // with all buffers, while some part is written
  private var out: ByteBuffer = null
  private var block: Block = null // the block that fills, by way of the next two fields
  private var raw: Array[Byte] = null
  private var rawSize = 0
  private var ended = false
  private var blocks = 0
  private var blockRecords = 0
  private var records = 0L
  private var puts = 0L
  private var rawTotal = 0L
  private val crc = new CRC32

  channel.position(headBytes.toLong): Unit

  /** A file that begins with its header.
    * @param repeats a key may have several records, also merges; a reader that does not know this
    * flag must refuse the file */
  def this(file: File, header: ObjectNode, codec: Int, repeats: Boolean = false) = {
    this(file, codec, 0)
    var begun = false
    try {
      val head = ChangelogWriter.head(Json.bytes(header), 0, repeats)
      resume()
      ensure(head.remaining)
      out.put(head): Unit
      begun = true
    } finally if (!begun) discard() // nobody else can
  }

  /** The file: another one than at the beginning, if the header needed more room. */
  def file: File = current
  def fileBytes: Long = channel.position()

  /** What the file has from this byte on never changes, unless `file` does. */
  def fixedFrom: Long = headBytes.toLong

  /** Bytes of all records so far, before compression. */
  def rawBytes: Long = rawTotal + rawSize

  /** End the block: the next record begins a new one. Returns the number of blocks so far. */
  def endBlock(): Int = { if (rawSize > 0) flushBlock(); blocks }

  /** Whether the block is as good as full: a part of the file should end here. */
  def isBlockFull: Boolean = rawSize > BlockBytes - BlockBytes / 32

  /** End the block, and give the buffers back until the next record. */
  def pause(): Unit = if (scratch != null) {
    if (rawSize > 0) flushBlock()
    drain()
    release()
  }

  private def resume(): Unit = {
    scratch = ChangelogScratch.take()
    out = scratch.out
    out.clear(): Unit
    block = scratch.block
    raw = block.raw
  }

  private def release(): Unit = if (scratch != null) {
    scratch.giveBack(out)
    scratch = null
  }

  /** Append a record whose key and value (-1 bytes: none) lie in native memory: op, then
    * `[slot][family][version byte if any][key]`, or `[reserved slot][family][key][slot]`
    * where the order of the family spans key groups, and `[version byte if any][value]`, each
    * led by its length. */
  private def append(op: Byte, groupSlot: Int, f: Family, key: Long, keyLength: Int, valueLead: Int,
      value: Long, valueLength: Int): Unit = {
    val shape = f.shape
    val slot = if (shape.keyTrail == 0) groupSlot else FamilyKind.ReservedSlot
    val family = f.id
    begin(keyLength.toLong + math.max(0, valueLength))
    raw(rawSize) = op
    rawSize += 1
    varint(shape.keyExtra + keyLength)
    raw(rawSize) = (slot >>> 8).toByte
    raw(rawSize + 1) = slot.toByte
    raw(rawSize + 2) = (family >>> 8).toByte
    raw(rawSize + 3) = family.toByte
    raw(rawSize + 4) = 0 // the version byte; without one the key's first byte replaces it
    rawSize += 4 + shape.keyLead
    copyIn(key, keyLength)
    if (shape.keyTrail == 2) {
      raw(rawSize) = (groupSlot >>> 8).toByte
      raw(rawSize + 1) = groupSlot.toByte
      rawSize += 2
    }
    if (valueLength >= 0) {
      varint(valueLead + valueLength)
      raw(rawSize) = 0
      rawSize += valueLead
      copyIn(value, valueLength)
    }
  }

  private def copyIn(from: Long, length: Int): Unit = {
    Bytes.copy(null, from, raw, Bytes.ArrayOffset + rawSize, length)
    rawSize += length
  }

  def put(
      slot: Int, family: Family, key: Long, keyLength: Int, value: Long, valueLength: Int): Unit = {
    append(Op.Put, slot, family, key, keyLength, family.valueLead, value, valueLength)
    puts += 1
  }

  /** Append a merge record: bytes for the end of a key's value. Such values carry their
    * version bytes themselves. */
  def merge(
      slot: Int, family: Family, key: Long, keyLength: Int, value: Long, valueLength: Int): Unit =
    append(Op.Merge, slot, family, key, keyLength, 0, value, valueLength)

  def delete(slot: Int, family: Family, key: Long, keyLength: Int): Unit =
    append(Op.Delete, slot, family, key, keyLength, 0, 0L, -1)

  /** Append a record that a reader gave. */
  def copy(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int, valueLength: Int)
      : Unit = {
    begin(keyLength.toLong + math.max(0, valueLength))
    raw(rawSize) = op
    rawSize += 1
    run(block, keyAt, keyLength)
    if (valueLength >= 0) run(block, valueAt, valueLength)
    if (op == Op.Put) puts += 1
  }

  private def run(from: Array[Byte], at: Int, length: Int): Unit = {
    varint(length)
    System.arraycopy(from, at, raw, rawSize, length)
    rawSize += length
  }

  /** Reserve room for a record with so many bytes of key and value. */
  private def begin(bytes: Long): Unit = {
    if (bytes > MaxBlockBytes - HeadBytes)
      throw MillpondError.of("ROW_TOO_LARGE",
        s"a record of $bytes bytes is more than a changelog can hold.")
    val room = (bytes + HeadBytes).toInt
    if (scratch == null) resume()
    if (rawSize > 0 && rawSize + room > BlockBytes) flushBlock()
    reserve(room)
    blockRecords += 1
    records += 1
  }

  /** Complete the file and return its size in bytes. It is not durable yet: the agent syncs it. */
  def finish(): Long = {
    endRecords()
    val size = channel.position()
    end()
    size
  }

  /** The same for a file that began with room for its header. */
  def finish(header: ObjectNode, repeats: Boolean): Long = {
    endRecords()
    val json = Json.bytes(header)
    val missing = json.length + ChangelogWriter.AroundBytes - headBytes
    if (missing > 0) moveTo(missing)
    val head = ChangelogWriter.head(json, math.max(0, -missing), repeats)
    Seams.at("changelog.write")
    var at = 0L
    while (head.hasRemaining) at += channel.write(head, at)
    val size = channel.position()
    end()
    size
  }

  /** Copy the records behind a longer header. */
  private def moveTo(missing: Int): Unit = {
    val (old, oldFile, size) = (channel, current, channel.position())
    current = ChangelogWriter.stagingFile(first.getParentFile)
    try {
      channel = FileChannel.open(current.toPath, CREATE_NEW, READ, WRITE)
      channel.position(headBytes.toLong + missing)
      var at = headBytes.toLong
      while (at < size) at += old.transferTo(at, size - at, channel)
    } finally
      try old.close()
      finally oldFile.delete(): Unit
  }

  private def endRecords(): Unit = {
    if (scratch == null) resume()
    if (rawSize > 0) flushBlock()
    ensure(36)
    val start = out.position()
    out.putInt(0).put(FooterMagic).putLong(records).putLong(puts).putLong(rawTotal)
    putCrc(start)
    drain()
  }

  /** Give the file up. That it cannot be closed says nothing more: what the disk refuses is lost
    * anyway. */
  def discard(): Unit =
    try end()
    catch { case _: java.io.IOException => () }
    finally current.delete(): Unit

  /** Give back the buffers, once, whatever happens to the file. */
  private def end(): Unit = if (!ended) {
    ended = true
    try {
      channel.close()
      Seams.at("changelog.close")
    } finally release()
  }

  /** Compress what the block holds into the file. The next record begins a new block. */
  private def flushBlock(): Unit = {
    blocks += 1
    block.raw = raw
    block.rawSize = rawSize
    block.records = blockRecords
    rawTotal += rawSize
    rawSize = 0
    blockRecords = 0
    block.compress(codec)
    store(block)
  }

  private def store(b: Block): Unit = {
    ensure(20 + b.storedSize)
    val start = out.position()
    out.putInt(b.rawSize).putInt(b.storedSize).putInt(b.records).put(b.used.toByte).put(0.toByte)
      .put(0.toByte).put(0.toByte)
    sumFrom(start)
    crc.update(b.stored, 0, b.storedSize)
    out.putInt(crc.getValue.toInt).put(b.stored, 0, b.storedSize)
    ()
  }

  private def reserve(size: Int): Unit = {
    if (size > Block.UsualBytes) Seams.at("memory.block")
    if (rawSize + size > raw.length)
      raw = java.util.Arrays.copyOf(raw, RowLimit.bufferFor(rawSize + size))
  }

  private def varint(n: Int): Unit = {
    var v = n
    while ((v & ~0x7F) != 0) { raw(rawSize) = ((v & 0x7F) | 0x80).toByte; rawSize += 1; v >>>= 7 }
    raw(rawSize) = v.toByte
    rawSize += 1
  }

  private def putCrc(start: Int): Unit = {
    sumFrom(start)
    out.putInt(crc.getValue.toInt)
    ()
  }

  /** Begin a checksum with what `out` holds from `start` on. */
  private def sumFrom(start: Int): Unit = {
    crc.reset()
    val view = out.duplicate()
    view.flip().position(start)
    crc.update(view)
  }

  /** Room for `size` bytes that a checksum will cover as one. */
  private def ensure(size: Int): Unit = if (out.remaining < size) {
    drain()
    if (size > ChangelogScratch.OutBytes) Seams.at("memory.block")
    if (out.capacity < size) out = ChangelogScratch.buffer(size)
  }

  private def drain(): Unit = {
    out.flip()
    Seams.at("changelog.write")
    while (out.hasRemaining) channel.write(out)
    out.clear()
    ()
  }
}

object ChangelogWriter {
  /** What a header has around its JSON. */
  private val AroundBytes = 16

  /** A file that begins with room for its header: for this one, and for some growth. */
  def withRoom(file: File, header: ObjectNode, codec: Int): ChangelogWriter = {
    val bytes = Json.bytes(header).length
    new ChangelogWriter(file, codec,
      Seams.stretch("changelog.room", AroundBytes + bytes + bytes / 2L + 4096L).toInt)
  }

  /** A name in `dir` that no other file has or had, for a file that is not published yet. */
  def stagingFile(dir: File): File =
    new File(dir, s".staging-${java.util.UUID.randomUUID.toString.replace("-", "")}")

  /** The beginning of a file. So many blanks follow the JSON. */
  private def head(json: Array[Byte], blanks: Int, repeats: Boolean): ByteBuffer = {
    import ChangelogFormat._
    val head = ByteBuffer.allocate(AroundBytes + json.length + blanks)
      .order(ByteOrder.LITTLE_ENDIAN)
    head.put(Magic).putShort(FormatVersion).putShort(if (repeats) Repeats else 0)
    head.putInt(json.length + blanks).put(json)
    var i = 0
    while (i < blanks) { head.put(' '.toByte); i += 1 }
    val crc = new CRC32
    crc.update(head.array, 0, head.position())
    head.putInt(crc.getValue.toInt).flip()
  }
}
