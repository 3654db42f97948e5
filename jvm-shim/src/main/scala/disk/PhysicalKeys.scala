package org.apache.spark.sql.millpond.disk

import java.nio.ByteBuffer

import org.apache.spark.sql.millpond.base.{RowLimit, SparkCompatibility}
import org.apache.spark.sql.millpond.rows.Family
import org.apache.spark.unsafe.Platform

/** The keys of a disk tier, one after the other, each in native memory until the next one; `family`
  * is null for rows that belong to none of the families. It skips tables that are complete: the
  * disk may still have rows of a dropped family under their ids. */
private[millpond] final class PhysicalKeys(scan: DiskScan, families: Iterable[Family]) {
  private val byId = new Array[Family](0x10000)
  families.foreach(f => if (!f.table.complete) byId(f.id) = f)
  private var keys = ByteBuffer.allocateDirect(256)
  private var begun = false
  var family: Family = null
  var at = 0L
  var length = 0
  var slot = 0

  def next(): Boolean = {
    if (begun) scan.next() else { scan.seekToFirst(); begun = true }
    val valid = scan.isValid
    if (valid) {
      keys.clear()
      var size = scan.keyInto(keys)
      if (size > keys.capacity) {
        keys = ByteBuffer.allocateDirect(RowLimit.bufferFor(size))
        size = scan.keyInto(keys)
      }
      val key = SparkCompatibility.addressOf(keys)
      family = byId(unsigned(key + 2))
      if (family != null) {
        at = key + 4 + family.keyLead
        length = size - family.keyExtra
        slot = unsigned(if (family.shape.keyTrail == 0) key else key + size - 2)
      }
    }
    valid
  }

  private def unsigned(at: Long): Int =
    ((Platform.getByte(null, at) & 0xFF) << 8) | (Platform.getByte(null, at + 1) & 0xFF)
  def close(): Unit = scan.close()
}
