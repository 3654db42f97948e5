package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.ByteBuffer

import org.rocksdb.{EnvOptions, Options, RocksDBException, SstFileWriter}

import org.apache.spark.sql.millpond.base.{RowLimit, Seams}

/** Writes one SSTable; keys must ascend strictly. `finish` or `abandon` must be called.
  *
  * @param filter gets the keys of rows, before anybody can read them in the tier */
private[disk] final class SstWriter(options: Options, file: File, filter: TierFilter) {
  // write to the disk as the file grows: one large write at the end would delay every
  // commit that syncs then
  private val env = new EnvOptions().setBytesPerSync(1L << 20)
  private val writer = new SstFileWriter(env, options)
  private var keyBuffer = ByteBuffer.allocateDirect(256)
  private var valueBuffer = ByteBuffer.allocateDirect(4096)
  private var count = 0L
  private var room = Seams.stretch("sst.bytes", SstWriter.MostBytes)
  locally {
    var begun = false
    try { attempt { writer.open(file.getPath); Seams.at("disk.sst") }; begun = true }
    finally if (!begun) abandon() // no caller has it yet
  }

  def entries: Long = count

  /** False: what follows belongs into another file. A larger one `PointReads` could not map. */
  def hasRoom: Boolean = room > 0L

  def put(key: Array[Byte], keyAt: Int, keyLength: Int, value: Array[Byte], valueAt: Int,
      valueLength: Int): Unit = {
    if (keyBuffer.capacity < keyLength)
      keyBuffer = ByteBuffer.allocateDirect(RowLimit.bufferFor(keyLength))
    if (valueBuffer.capacity < valueLength)
      valueBuffer = ByteBuffer.allocateDirect(RowLimit.bufferFor(valueLength))
    keyBuffer.clear()
    keyBuffer.put(key, keyAt, keyLength).flip()
    valueBuffer.clear()
    valueBuffer.put(value, valueAt, valueLength).flip()
    filter.add(key, keyAt, keyLength)
    attempt(writer.put(keyBuffer, valueBuffer))
    count += 1
    room -= keyLength + valueLength
  }

  def delete(key: Array[Byte], keyAt: Int, keyLength: Int): Unit = {
    attempt(writer.delete(java.util.Arrays.copyOfRange(key, keyAt, keyAt + keyLength)))
    count += 1
    room -= keyLength
  }

  def finish(): Unit =
    try attempt { Seams.at("disk.sst"); writer.finish() }
    finally free()

  def abandon(): Unit = { free(); file.delete(); () }

  private def free(): Unit = { writer.close(); env.close() }

  private def attempt(action: => Unit): Unit =
    try action
    catch {
      case e: RocksDBException =>
        throw DiskTier.failure(s"the sorted file $file cannot be written", e)
    }
}

private object SstWriter {
  /** Of keys and values. */
  private val MostBytes = 1L << 30
}
