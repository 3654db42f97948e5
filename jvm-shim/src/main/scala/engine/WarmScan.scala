package org.apache.spark.sql.millpond.engine

import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.base.{RowLimit, SparkCompatibility}
import org.apache.spark.sql.millpond.disk.{DiskScan, PhysicalKeys}
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.Family

/** The position of a store's warm-up. Rows pass through two direct buffers, so a row
  * allocates no array. */
private[engine] final class WarmScan(scan: DiskScan, families: Iterable[Family]) {
  private val loading = families.map(_.table).filterNot(_.complete).toArray
  private val keys = new PhysicalKeys(scan, families)
  private var values = ByteBuffer.allocateDirect(4096)
  loading.foreach(_.beginLoading())

  /** The warm-up has seen all rows. */
  def end(): Unit = loading.foreach(_.endLoading())

  /** Admit some rows, the first of them however large it is. False at the end; callers must stop
    * then.
    * @param bytes of keys and values, after which it also ends */
  def step(rows: Int, bytes: Long): Boolean = {
    var n = 0
    var admitted = 0L
    var more = true
    while (n < rows && admitted < bytes && more) {
      more = keys.next()
      if (more && keys.family != null && !keys.family.isClosed) admitted += admit(keys.family)
      n += 1
    }
    more
  }

  /** Returns the bytes that memory got. */
  private def admit(f: Family): Int = {
    val hash = Bytes.hash(null, keys.at, keys.length)
    if (f.table.find(null, keys.at, keys.length, hash) == 0L) {
      values.clear()
      var valueLength = scan.valueInto(values)
      if (valueLength > values.capacity) {
        values = ByteBuffer.allocateDirect(RowLimit.bufferFor(valueLength))
        valueLength = scan.valueInto(values)
      }
      f.table.admit(null, keys.at, keys.length, hash, keys.slot, f.prefixLength(null, keys.at),
        null, SparkCompatibility.addressOf(values) + f.valueLead, valueLength - f.valueLead,
        0): Unit
      keys.length + valueLength
    } else 0
  }

  def close(): Unit = scan.close()
}
