package org.apache.spark.sql.millpond.memory

/** Sorting of keys by number. Both sorts are stable. */
private[millpond] object KeySort {
  private val DigitBits = 16
  private val DigitMask = (1 << DigitBits) - 1
  private val RunLength = 8

  /** The indices of `words` in the order of the words as unsigned numbers: a radix sort from the
    * last digit on, which skips the digits that all words share. */
  def byWord(words: Array[Long]): Array[Int] = {
    val count = words.length
    var from = Array.range(0, count)
    var to = new Array[Int](count)
    var differ = 0L
    var i = 0
    while (i < count) { differ |= words(i) ^ words(0); i += 1 }
    val starts = new Array[Int](DigitMask + 1)
    var shift = 0
    while (shift < 64) {
      if ((differ >>> shift & DigitMask) != 0) {
        java.util.Arrays.fill(starts, 0)
        i = 0
        while (i < count) { starts((words(i) >>> shift).toInt & DigitMask) += 1; i += 1 }
        var sum = 0
        i = 0
        while (i <= DigitMask) { val n = starts(i); starts(i) = sum; sum += n; i += 1 }
        i = 0
        while (i < count) {
          val digit = (words(from(i)) >>> shift).toInt & DigitMask
          to(starts(digit)) = from(i)
          starts(digit) += 1
          i += 1
        }
        val swap = from
        from = to
        to = swap
      }
      shift += DigitBits
    }
    from
  }

  /** Sort `order(low until high)` by comparison: a merge sort over runs that insertion has sorted.
    * `scratch` is as long as `order`. */
  def byComparison(order: Array[Int], scratch: Array[Int], low: Int, high: Int,
      compare: (Int, Int) => Int): Unit = {
    var start = low
    while (start < high) {
      val end = math.min(start + RunLength, high)
      var i = start + 1
      while (i < end) {
        val x = order(i)
        var j = i - 1
        while (j >= start && compare(order(j), x) > 0) { order(j + 1) = order(j); j -= 1 }
        order(j + 1) = x
        i += 1
      }
      start = end
    }
    var width = RunLength
    while (width < high - low) {
      var left = low
      while (left + width < high) {
        merge(order, scratch, left, left + width, math.min(left + 2 * width, high), compare)
        left += 2 * width
      }
      width *= 2
    }
  }

  private def merge(order: Array[Int], scratch: Array[Int], low: Int, middle: Int, high: Int,
      compare: (Int, Int) => Int): Unit = {
    System.arraycopy(order, low, scratch, low, middle - low)
    var i = low
    var j = middle
    var k = low
    while (i < middle) {
      if (j < high && compare(scratch(i), order(j)) > 0) { order(k) = order(j); j += 1 }
      else { order(k) = scratch(i); i += 1 }
      k += 1
    }
  }
}
