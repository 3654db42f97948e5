package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.Op
import org.apache.spark.unsafe.Platform

/** The records of a [[Table]] that the running batch wrote, each once: its write buffer. And how
  * far the batch's log has them. */
private[millpond] abstract class WrittenRecords(budget: MemoryBudget, shape: TableShape)
    extends Records(budget, shape) {
  import Records._
  import WrittenRecords._

  private[memory] final var touched = new TouchList

  // of the touched records: so many have been in the batch's log, and which of these changed since,
  // each with the length of its value that was in the log
  private var loggedUpTo = 0
  protected final val again = new PairQueue
  private var takenLength = 0 // that length, of the record that `takeUnlogged` took from there
  private var waitingCount = 0L // see `waitingBytes`

  final def touchedCount: Int = touched.size
  final def touchedRecord(i: Int): Long = touched.current(i)

  /** Length of the value that a merge record of touched record `i` appends to: what the log has of
    * it, or else what the key had before the batch, as far as the batch knows; 0 if it had none. If
    * the log has the key, `takeUnlogged` took it last. */
  final def mergeBase(i: Int): Int =
    if (isTold(i)) takenLength
    else {
      val old = touched.old(i)
      if (old == 0L) 0 else math.max(0, valueLength(old))
    }

  /** Bring the records `from` until `until` of the touch list into the processor's cache. The
    * result means nothing: it keeps the JIT from removing the reads. */
  final def touchAhead(from: Int, until: Int): Int = {
    var sum = 0
    var i = from
    while (i < until) {
      val record = touched.current(i)
      sum += Platform.getByte(null, valueAddress(record) + math.max(0, valueLength(record)) - 1)
      i += 1
    }
    sum
  }

  // ---- the log of the running batch -------------------------------------------------------------

  /** How many touched records the batch's log lacks, as they are now. */
  final def unloggedCount: Int = touched.size - loggedUpTo + again.size

  /** About how many bytes of appended and of long values the log lacks: few keys may have much.
    * Those of a list that was replaced count until all waiting records are logged. */
  final def waitingBytes: Long = waitingCount

  /** The next record that the log lacks, by its number in the touch list. There is one. From now
    * on it counts as logged. */
  final def takeUnlogged(): Int =
    if (loggedUpTo < touched.size) { loggedUpTo += 1; loggedUpTo - 1 }
    else {
      val i = again.one
      takenLength = again.other
      again.drop()
      i
    }

  /** Whether the log has an earlier record of the key of touched record `i`. */
  final def isTold(i: Int): Boolean = is(touched.current(i), Told)

  /** The log needs no more of touched record `i`, as it is now; `takeUnlogged` took it last. Needs
    * no memory.
    * @param op what it got of the key, 0: nothing */
  final def markLogged(i: Int, op: Byte): Unit = {
    val record = touched.current(i)
    if (op == Op.Merge) waitingCount -= valueLength(record) - mergeBase(i)
    else if (op == Op.Put) waitingCount -= beyondShort(valueLength(record))
    if (waitingCount < 0L || unloggedCount == 0) waitingCount = 0L
    setFlag(record,
      if (op == 0) Logged else if (op == Op.Delete) Told | Logged else Told | Logged | Grown)
  }

  /** The log is lost: it has no record. */
  final def forgetLog(): Unit = {
    var i = 0
    while (i < loggedUpTo) {
      val record = touched.current(i)
      Platform.putShort(null, record + FlagsAt, (flags(record) & ~(Told | Logged | Grown)).toShort)
      i += 1
    }
    endLog()
  }

  protected final def endLog(): Unit = {
    loggedUpTo = 0
    again.clear()
    waitingCount = 0L
  }

  /** The batch changes a record of its own, which the log may have. */
  protected final def noteAgain(record: Long): Unit = if (is(record, Logged)) {
    again.add(Platform.getInt(null, record + TouchAt), valueLength(record))
    Platform.putShort(null, record + FlagsAt, (flags(record) & ~Logged).toShort)
  }

  protected final def noteAppended(bytes: Int): Unit = waitingCount += bytes

  /** The batch writes a value. Short ones are bounded by their number.
    * @param old the record of the batch that it replaces, or 0 */
  protected final def notePut(old: Long, length: Int): Unit = {
    if (old != 0L && !is(old, Logged))
      waitingCount = math.max(0L, waitingCount - beyondShort(valueLength(old)))
    waitingCount += beyondShort(length)
  }

  private def beyondShort(length: Int): Int = math.max(0, length - ShortBytes)
}

private object WrittenRecords {
  private val ShortBytes = 256
}
