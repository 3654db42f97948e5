package org.apache.spark.sql.millpond.transport

import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.sql.Row

/** Frames of expired timers with the state of their keys. A key may have several, so a frame is
  * made when all changes of the one before it are in the store.
  *
  * @param timers key and time in ms, as Spark lists them */
private[transport] final class TimerFrames(
    timers: Iterator[(Any, Long)], states: BulkStates, limit: FrameSize) {
  def hasNext: Boolean = timers.hasNext

  def next(): ByteBuffer = {
    val numbers = mutable.HashMap.empty[Row, Int]
    val keys, expired = new PickleOut
    keys.beginList()
    expired.beginList()
    var count = 0
    while (timers.hasNext && count < limit.rows && states.bytes < limit.bytes) {
      val (key: Row, time) = timers.next(): @unchecked
      val number = numbers.getOrElseUpdate(key, {
        states.add(key)
        keys.row(key)
        numbers.size
      })
      expired.long(number.toLong)
      expired.long(time)
      count += 1
    }
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
