package org.apache.spark.sql.millpond.disk

import java.io.{File, IOException}
import java.lang.ref.Reference
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, NoSuchFileException}
import java.nio.file.attribute.BasicFileAttributes

import scala.collection.mutable

import org.apache.spark.sql.millpond.base.{
  MillpondError, MillpondException, Seams, SparkCompatibility
}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.storage.StorageUtils
import org.apache.spark.unsafe.Platform

/** A sorted file, mapped into memory. It stays readable when RocksDB has moved or deleted it. No
  * read may run beside `close`.
  *
  * Source: RocksDB 9, table/format.h, table/block_based. It reads what this build of Millpond
  * writes, and says of all else that it does not. */
private[disk] final class MappedSst(file: File) {
  import MappedSst._

  /** The file itself, whatever its name is now. */
  val identity: AnyRef = identityOf(file).orNull
  val single = new SingleReads(identity, file)
  // what reads the whole file once goes another way: it would make all pages resident
  private var whole = new SstWindow(file)
  private val buffer = whole.map()
  private val address = SparkCompatibility.addressOf(buffer)
  val bytes: Long = buffer.capacity.toLong
  /** Entries, deletions and older values included. Known once the file is understood. */
  var entries = 0L
  private var offsets = Array.empty[Int]
  private var lengths = Array.empty[Int]

  def blocks: Int = lengths.length

  /** @param window of this file, for who reads it from front to end; null: through the mapping */
  def load(block: SstBlock, number: Int, window: SstWindow = null): Unit =
    block.load(this, offsets(number).toLong, lengths(number), window)

  /** Copy bytes to native memory, 8 at least. */
  def copy(offset: Long, to: Long, length: Int, window: SstWindow, reads: BlockReads): Unit = {
    val way = if (window == null) whole else window
    if (way != null) way.copy(offset, to, length)
    else reads.copy(this, offset, to, length)
  }

  /** The same through the mapping. If a page of the file cannot be read, the JVM goes on behind the
    * copy, which native code would not survive, and tells of it later. Then the first or the last
    * bytes are none of the file's, so no check sum is right. */
  def copyMapped(offset: Long, to: Long, length: Int): Unit = {
    Platform.putLong(null, to, NoBytes)
    Platform.putLong(null, to + length - 8, NoBytes)
    Platform.copyMemory(null, address + offset, null, to, length.toLong)
  }

  /** All blocks were read. */
  def indexed(): Unit = if (whole != null) { whole.close(); whole = null }

  def damaged(what: String, cause: InternalError = unread()): Nothing =
    throw MillpondError.of("SST_DAMAGED", s"the sorted file $file: $what", cause = cause)

  def close(): Unit = { indexed(); single.close(); StorageUtils.dispose(buffer) }

  /** Find the data blocks. False: the file has what is not read here. */
  def understand(block: SstBlock): Boolean = {
    if (bytes < FooterBytes) damaged("is too short")
    val footer = whole.last(FooterBytes)
    def footerInt(at: Int): Int = Platform.getInt(footer, Bytes.ArrayOffset + at)
    if (Platform.getLong(footer, Bytes.ArrayOffset + FooterBytes - 8) != Magic)
      damaged("is no sorted file")
    if (footerInt(FooterBytes - 12) != FormatVersion || footer(0) != Crc32c) return false
    val handles = new Varints(footer, 1)
    val (metaAt, metaBytes) = (handles.long(), handles.int())
    val (indexAt, indexBytes) = (handles.long(), handles.int())
    block.load(this, metaAt, metaBytes)
    val meta = texts(block)
    if (meta.contains("rocksdb.compression_dict") || meta.contains("rocksdb.range_del"))
      return false
    val place = new Varints(meta.getOrElse("rocksdb.properties", damaged("has no properties")), 0)
    block.load(this, place.long(), place.int())
    val properties = texts(block)
    def number(name: String): Long = properties.get(name).fold(0L)(new Varints(_, 0).long())
    val compression = properties.get("rocksdb.compression").fold("")(text)
    val kind = properties.get("rocksdb.block.based.table.index.type").fold(-1)(v =>
      if (v.length == 4) Platform.getInt(v, Bytes.ArrayOffset) else -1)
    entries = number("rocksdb.num.entries")
    Compressions.contains(compression) && number("rocksdb.index.value.is.delta.encoded") == 1L &&
    (kind == OneLevel || kind == TwoLevels) && {
      val found = new Handles
      block.load(this, indexAt, indexBytes)
      found.read(block)
      if (kind == TwoLevels) {
        val parts = found.result()
        found.clear()
        parts.foreach { case (at, length) =>
          block.load(this, at.toLong, length); found.read(block)
        }
      }
      val all = found.result()
      offsets = all.map(_._1)
      lengths = all.map(_._2)
      whole.forget()
      all.nonEmpty
    }
  }

  private def texts(block: SstBlock): Map[String, Array[Byte]] = {
    val found = Map.newBuilder[String, Array[Byte]]
    while (block.next(behind = 0)) {
      val value = new Array[Byte](block.valueLength)
      Bytes.copy(null, block.valueAt, value, Bytes.ArrayOffset, value.length)
      found += new String(block.key, 0, block.keyLength, StandardCharsets.UTF_8) -> value
    }
    found.result()
  }

  private final class Varints(from: Array[Byte], private var at: Int) {
    def isAtEnd: Boolean = at >= from.length
    def skip(bytes: Int): Unit = at += bytes
    def long(): Long = {
      var value = 0L
      var shift = 0
      var byte = -1
      while (byte < 0) {
        if (at >= from.length || shift > 63) damaged("a number leads out of its place")
        byte = from(at).toInt
        at += 1
        value |= (byte & 0x7FL) << shift
        shift += 7
      }
      value
    }
    def int(): Int = {
      val value = long()
      if (value < 0 || value > bytes) damaged("a block is longer than the file")
      value.toInt
    }
  }

  /** The places of blocks. Only the first of each restart is told in full; of the others the
    * change of length. */
  private final class Handles {
    private val found = mutable.ArrayBuffer.empty[(Int, Int)]

    def read(block: SstBlock): Unit = {
      val raw = new Array[Byte]((block.until - block.from).toInt)
      Platform.copyMemory(null, block.from, raw, Bytes.ArrayOffset, raw.length.toLong)
      val from = new Varints(raw, 0)
      while (!from.isAtEnd) {
        val shared = from.long()
        from.skip(from.int())
        val (offset, length) =
          if (shared == 0L) (from.long(), from.long())
          else {
            if (found.isEmpty) damaged("an index begins with a change")
            val change = from.long()
            val (before, size) = found.last
            (before.toLong + size + SstBlock.TrailerBytes, size + ((change >>> 1) ^ -(change & 1)))
          }
        if (offset < 0 || length < 0 || offset + length > bytes) damaged("an index leads outside")
        found += ((offset.toInt, length.toInt))
      }
    }

    def result(): Array[(Int, Int)] = found.toArray
    def clear(): Unit = found.clear()
  }
}

private[disk] object MappedSst {
  private val FooterBytes = 53
  private val LargeBytes = 8 << 20
  private val NoBytes = 0x6E6F742072656164L
  private val Magic = 0x88E241B785F4CFF7L
  private val FormatVersion = 5
  private val Crc32c: Byte = 1
  private val OneLevel = 0
  private val TwoLevels = 2
  private val Compressions = Set("NoCompression", "LZ4", "LZ4HC", "ZSTD")

  /** The largest file that can be mapped as one. */
  def mostBytes: Long = Seams.stretch("points.file", Int.MaxValue.toLong)

  /** Null: it is too large, or this process may not open or map one more. */
  def ifPossible(file: File): MappedSst =
    if (file.length > mostBytes) null
    else
      try new MappedSst(file)
      catch { case _: MillpondException => null }

  /** What a file is, whatever its name is; none if it is gone. */
  def identityOf(file: File): Option[AnyRef] =
    try Some(Files.readAttributes(file.toPath, classOf[BasicFileAttributes]).fileKey)
    catch {
      case _: NoSuchFileException => None
      case e: IOException => throw lost(file, e)
    }

  /** The error of a page that this thread could not read, or null. The JVM throws it when the
    * thread next asks it for something, like an array that is too large for the thread's own
    * buffer. */
  private def unread(): InternalError =
    try { Reference.reachabilityFence(new Array[Byte](LargeBytes)); null }
    catch { case e: InternalError => e }

  private def text(value: Array[Byte]): String = new String(value, StandardCharsets.UTF_8)

  def lost(file: File, e: IOException): MillpondException =
    MillpondError.ofFile("LOCAL_FILES_LOST", s"the sorted file $file cannot be read: $e", e)
}
