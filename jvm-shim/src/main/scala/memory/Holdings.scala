package org.apache.spark.sql.millpond.memory

/** How much memory the stores of an executor hold, counted by size, so that neither a change nor
  * the level takes longer with more stores. Callers hold a lock. */
private[memory] final class Holdings {
  import Holdings.{Classes, classOf, least}

  private val counts = new Array[Int](Classes)
  private val sums = new Array[Long](Classes)
  private var total = 0

  def count: Int = total
  def add(bytes: Long): Unit = put(bytes, 1)
  def remove(bytes: Long): Unit = put(bytes, -1)

  private def put(bytes: Long, sign: Int): Unit = {
    val at = classOf(bytes)
    counts(at) += sign
    sums(at) += sign * bytes
    total += sign
  }

  /** The most that each of the large stores may hold, so that all together hold `limit`: it is
    * divided among the stores in equal parts, and those that hold less than such a part leave the
    * rest to the others. `limit` if none holds more. */
  def level(limit: Long): Long = {
    var (room, stores, at) = (limit, total, 0)
    while (stores > 0 && at < counts.length) {
      if (counts(at) > 0) {
        if (least(at + 1) - 1 > room / stores) return room / stores
        room -= sums(at)
        stores -= counts(at)
      }
      at += 1
    }
    limit
  }
}

private object Holdings {
  private val Classes = 252

  /** Four classes for each power of two. */
  private def classOf(bytes: Long): Int = if (bytes < 4) bytes.toInt
  else {
    val power = 63 - java.lang.Long.numberOfLeadingZeros(bytes)
    (power - 1) * 4 + (bytes >>> (power - 2)).toInt - 4
  }

  /** The smallest holding of a class. */
  private def least(at: Int): Long = if (at < 4) at.toLong else (4L + (at & 3)) << (at / 4 - 1)
}
