package org.apache.spark.sql.millpond.disk

/** A sorted file of the disk tier, and a table that tells where its keys are. */
private[disk] final class IndexedSst(val sst: MappedSst, val keys: KeyBlocks) {
  /** Those that are open keep the file. The lock of its `PointReads` guards them. */
  var scans = 0
  private var isClosed = false

  def bytes: Long = keys.bytes

  def close(): Unit = {
    keys.close()
    isClosed = true
    if (scans == 0) sst.close()
  }

  /** A scan has ended. */
  def unpin(): Unit = {
    scans -= 1
    if (isClosed && scans == 0) sst.close()
  }
}

/** Files that do not overlap, in the order of their keys.
  * @param largest the last key of each */
private[disk] final class SortedRun(val files: Array[IndexedSst], largest: Array[Array[Byte]]) {
  /** The only file that can have a key. */
  def covering(key: Array[Byte], length: Int): IndexedSst = files(indexOf(key, length))

  /** Of the first file that does not end before a key, or of the last one. */
  def indexOf(key: Array[Byte], length: Int): Int = {
    var low = 0
    var high = files.length - 1
    while (low < high) {
      val middle = (low + high) >>> 1
      val last = largest(middle)
      if (java.util.Arrays.compareUnsigned(last, 0, last.length, key, 0, length) < 0)
        low = middle + 1
      else high = middle
    }
    low
  }
}

private[disk] object SortedRun {
  def of(file: IndexedSst): SortedRun = new SortedRun(Array(file), Array(Array.emptyByteArray))
}
