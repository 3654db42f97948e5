package org.apache.spark.sql.millpond.disk

import java.lang.ref.Cleaner
import java.nio.{ByteBuffer, ByteOrder}
import java.util.concurrent.ArrayBlockingQueue
import java.util.zip.CRC32C

import com.github.luben.zstd.{ZstdDecompressCtx, ZstdException}
import net.jpountz.lz4.{LZ4Exception, LZ4Factory}

import org.apache.spark.sql.millpond.base.{RowLimit, SparkCompatibility}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.storage.StorageUtils
import org.apache.spark.unsafe.Platform

/** One block of a sorted file: checked, decompressed, and in native memory until the next one is
  * loaded. It walks over the entries, or finds the one of a key.
  *
  * Source: RocksDB 9, table/block_based (block_builder.cc, format.cc). Not for several threads. */
private[disk] final class SstBlock {
  import SstBlock._

  private var stored = ByteBuffer.allocateDirect(FirstBytes)
  private var raw = ByteBuffer.allocateDirect(FirstBytes)
  private val reads = new BlockReads
  private val crc = new CRC32C
  private lazy val zstd = SstBlock.zstdFor(this)
  private var owner: MappedSst = null
  private var begin = 0L
  private var end = 0L // of the entries; the restarts follow
  private var restarts = 0
  private var at = 0L // of the next entry

  /** The current entry. Its key has `keyLength` bytes; more follow, which are RocksDB's own. */
  var key = new Array[Byte](FirstKeyBytes)
  var keyLength = 0
  var valueAt = 0L
  var valueLength = 0
  private var kind = 0 // of the current entry: RocksDB's, see the companion

  /** Whether the current entry deletes its key, and has no value. Fails with
    * `MILLPOND_SST_DAMAGED` if it is neither: RocksDB's own reads of such an entry may end the JVM
    * (9.8: a merge, without an operator). */
  def isDeletion: Boolean = kind match {
    case Value => false
    case Deletion | SingleDeletion => true
    case _ => owner.damaged(s"has an entry of kind $kind, which Millpond never writes")
  }

  /** Where the entries lie, for who knows them better. */
  def from: Long = begin
  def until: Long = end

  /** Load a block. Fails with `MILLPOND_SST_DAMAGED` if it is not as it was written. */
  def load(file: MappedSst, offset: Long, length: Int, window: SstWindow = null): Unit =
    try loadChecked(file, offset, length, window)
    catch { case e: InternalError => file.damaged("cannot be read", e) }

  private def loadChecked(
      file: MappedSst, offset: Long, length: Int, window: SstWindow): Unit = {
    forget()
    owner = file
    val size = length + TrailerBytes
    if (length < LeastBytes || offset < 0 || offset + size > file.bytes)
      file.damaged("a block is outside")
    stored = roomFor(stored, size)
    val address = SparkCompatibility.addressOf(stored)
    file.copy(offset, address, size, window, reads)
    stored.limit(length + 1).position(0)
    crc.reset()
    crc.update(stored)
    if (Platform.getInt(null, address + length + 1) != masked(crc.getValue.toInt))
      file.damaged(s"the check sum of the block at $offset is wrong")
    Platform.getByte(null, address + length) match {
      case Plain =>
        raw = roomFor(raw, 0)
        within(address, length)
      case codec @ (Lz4 | Lz4Hc | Zstandard) =>
        at = address
        end = address + length
        val size = varint()
        raw = roomFor(raw, size)
        stored.limit(length)
        val packed = (at - address).toInt
        val n =
          try
            if (codec == Zstandard)
              zstd.decompressDirectByteBuffer(raw, 0, size, stored, packed, length - packed)
            else lz4.decompress(stored, packed, length - packed, raw, 0, size)
          catch { case _: LZ4Exception | _: ZstdException => -1 }
        if (n != size || size < 4) file.damaged(s"the block at $offset does not decompress")
        within(SparkCompatibility.addressOf(raw), size)
      case other => file.damaged(s"a block of compression $other")
    }
  }

  /** If the load fails there are no entries: the buffer of the last ones may be gone. */
  private def forget(): Unit = {
    begin = 0L
    end = 0L
    restarts = 0
    valueLength = 0
    rewind()
  }

  private def within(address: Long, size: Int): Unit = {
    if (RowLimit.isExcess(key.length, size)) key = new Array[Byte](FirstKeyBytes)
    begin = address
    end = address + size - 4
    restarts = Platform.getInt(null, end)
    if (restarts < 0) { // an index of hashes comes before
      end -= 2
      end -= Platform.getShort(null, end) & 0xFFFF
      restarts &= Int.MaxValue
    }
    end -= 4L * restarts
    if (end < begin || restarts == 0) owner.damaged("a block has no entries")
    rewind()
  }

  /** Bytes of all its buffers. */
  def roomBytes: Long = stored.capacity.toLong + raw.capacity + key.length + reads.roomBytes

  /** The first entry is next. */
  def rewind(): Unit = { at = begin; keyLength = 0 }

  /** Go to the next entry. False: there is none.
    * @param behind so many bytes of each stored key are none of it */
  def next(behind: Int = InternalBytes): Boolean = at < end && {
    val shared = varint()
    val unshared = varint()
    valueLength = varint()
    if (shared.toLong + unshared > key.length)
      key = java.util.Arrays.copyOf(key, RowLimit.bufferFor(shared + unshared))
    keyLength = shared + unshared - behind
    if (shared < 0 || unshared < 0 || valueLength < 0 || keyLength < 0 ||
      end - at < unshared.toLong + valueLength)
      owner.damaged("an entry leads out of its block")
    Bytes.copy(null, at, key, Bytes.ArrayOffset + shared, unshared)
    valueAt = at + unshared
    at = valueAt + valueLength
    if (behind == InternalBytes) kind = key(keyLength).toInt
    true
  }

  /** Go to the newest entry of a key. False: the block has none. */
  def find(wanted: Array[Byte], length: Int): Boolean =
    seek(wanted, length) && compare(wanted, length) == 0

  /** Go to the first entry that is not before a key. False: the block has none. */
  def seek(wanted: Array[Byte], length: Int): Boolean = restarts > 0 && {
    var low = 0 // the last restart before the key, or the first
    var high = restarts - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      goTo(middle)
      if (next() && compare(wanted, length) < 0) low = middle else high = middle - 1
    }
    goTo(low)
    var there = next()
    while (there && compare(wanted, length) < 0) there = next()
    there
  }

  private def goTo(restart: Int): Unit = {
    at = begin + Platform.getInt(null, end + 4L * restart)
    if (at < begin || at >= end) owner.damaged("a restart leads out of its block")
  }

  /** The order of the current key and another. */
  def compare(wanted: Array[Byte], length: Int): Int =
    Bytes.compare(key, Bytes.ArrayOffset, keyLength, wanted, Bytes.ArrayOffset, length)

  private def varint(): Int = {
    var value = 0
    var shift = 0
    var byte = -1
    while (byte < 0) {
      if (at >= end || shift > 28) owner.damaged("a number leads out of its block")
      byte = Platform.getByte(null, at).toInt
      at += 1
      value |= (byte & 0x7F) << shift
      shift += 7
    }
    value
  }
}

private[disk] object SstBlock {
  /** The kind of compression, and the check sum, behind each block. */
  val TrailerBytes = 5
  /** Sequence number and kind, behind each key. */
  val InternalBytes = 8

  private val Deletion = 0
  private val Value = 1
  private val SingleDeletion = 7

  private val FirstBytes = 16 << 10
  private val FirstKeyBytes = 256
  private val MostSpare = 64
  private val LeastBytes = 4
  private val Zstandard: Byte = 7
  private lazy val cleaner = Cleaner.create()

  /** A context for all blocks: a new one costs three times as much as a block. It ends with its
    * owner, of which a thread may have one for as long as it lives. */
  private def zstdFor(owner: SstBlock): ZstdDecompressCtx = {
    val made = new ZstdDecompressCtx
    cleaner.register(owner, () => made.close())
    made
  }

  // native memory that only a collection frees, and that costs more to ask for than a short scan
  private val spare = new ArrayBlockingQueue[SstBlock](MostSpare)

  def take(): SstBlock = { val block = spare.poll(); if (block == null) new SstBlock else block }

  /** The caller uses it no more. */
  def giveBack(block: SstBlock): Unit =
    if (block.stored.capacity + block.raw.capacity <= 4 * FirstBytes) spare.offer(block): Unit

  /** A buffer with room for `bytes` bytes: this one, if it suits. */
  private def roomFor(buffer: ByteBuffer, bytes: Int): ByteBuffer =
    if (buffer.capacity >= bytes && !RowLimit.isExcess(buffer.capacity, bytes)) buffer
    else {
      val made = ByteBuffer.allocateDirect(math.max(FirstBytes, RowLimit.bufferFor(bytes)))
      // a collection would come too late: nothing on the heap tells how much it is
      StorageUtils.dispose(buffer)
      made
    }

  private lazy val lz4 = LZ4Factory.fastestInstance().safeDecompressor()
  private val Plain: Byte = 0
  private val Lz4: Byte = 4
  private val Lz4Hc: Byte = 5

  assert(ByteOrder.nativeOrder == ByteOrder.LITTLE_ENDIAN)

  private def masked(crc: Int): Int = ((crc >>> 15) | (crc << 17)) + 0xA282EAD8
}
