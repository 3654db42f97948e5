package org.apache.spark.sql.millpond.transport

import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** Frames of expired timers with the state of their keys. A key may have several, so a frame ends
  * before a key whose changes are still on their way.
  *
  * @param found key and time in ms, as Spark lists them
  * @param bytesOf a key's bytes in the store, valid until the next call. They tell whether two keys
  *   are one: arrays of bytes are never equal in a [[Row]]. */
private[transport] final class TimerFrames(
    found: Iterator[(Any, Long)],
    bytesOf: Row => UnsafeRow,
    states: BulkStates,
    limit: FrameSize
) extends Frames {
  private final class Timer(val key: Row, val timeMs: Long) {
    val bytes: UnsafeRow = bytesOf(key).copy()
  }
  private val timers =
    found.map { case (key, timeMs) => new Timer(key.asInstanceOf[Row], timeMs) }.buffered
  private val ahead = mutable.Queue.empty[collection.Set[UnsafeRow]] // the keys of each frame

  override def hasNext: Boolean = timers.hasNext
  override def isReady: Boolean = {
    val key = timers.head.bytes
    !ahead.exists(_.contains(key))
  }
  override def consumed(): Unit = ahead.dequeue(): Unit

  override def next(): ByteBuffer = {
    val numbers = mutable.HashMap.empty[UnsafeRow, Int]
    val keys, expired = new PickleOut
    keys.beginList()
    expired.beginList()
    var count = 0
    var first = 0 // the number of the frame's first key
    while (timers.hasNext && isReady && count < limit.rows && states.bytes < limit.bytes) {
      val timer = timers.next()
      val number = numbers.getOrElseUpdate(timer.bytes, {
        keys.row(timer.key)
        states.add(timer.key)
      })
      if (count == 0) first = number
      states.expires(number, timer.timeMs)
      expired.long((number - first).toLong)
      expired.long(timer.timeMs)
      count += 1
    }
    ahead += numbers.keySet
    keys.endList()
    expired.endList()
    val frame = new Frame.Builder(Frame.Timers)
    frame.out.write('(')
    keys.writeTo(frame.out)
    expired.writeTo(frame.out)
    states.writeTo(frame.out)
    frame.out.writeBytes("t.")
    frame.result
  }
}
