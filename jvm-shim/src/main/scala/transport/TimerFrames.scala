package org.apache.spark.sql.millpond.transport

import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.sql.Row

/** Frames of expired timers with the state of their keys. A key may have several, so a frame ends
  * before a key whose changes are still on their way.
  *
  * @param found key and time in ms, as Spark lists them */
private[transport] final class TimerFrames(
    found: Iterator[(Any, Long)], states: BulkStates, limit: FrameSize) extends Frames {
  private val timers = found.buffered
  private val ahead = mutable.Queue.empty[collection.Set[Row]] // the keys of each frame

  override def hasNext: Boolean = timers.hasNext
  override def isReady: Boolean = {
    val (key: Row, _) = timers.head: @unchecked
    !ahead.exists(_.contains(key))
  }
  override def consumed(): Unit = ahead.dequeue(): Unit

  override def next(): ByteBuffer = {
    val numbers = mutable.HashMap.empty[Row, Int]
    val keys, expired = new PickleOut
    keys.beginList()
    expired.beginList()
    var count = 0
    while (timers.hasNext && isReady && count < limit.rows && states.bytes < limit.bytes) {
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
