package org.apache.spark.sql.millpond.transport

import java.io.{DataInputStream, IOException, InputStream}
import java.net.StandardSocketOptions
import java.nio.ByteBuffer
import java.nio.channels.{ClosedChannelException, SelectionKey}

import scala.collection.mutable

import org.apache.spark.api.python.PythonWorker
import org.apache.spark.internal.Logging

/** Both directions of a worker's socket, for one thread. Spark's own stream writes while it reads,
  * and cannot wait with input that is not decided yet.
  *
  * What is written waits here, and goes out while this end reads. So this end never waits for the
  * worker to read alone: a worker that is busy with results finds them taken, however many they
  * are, and at most one of them is in memory.
  *
  * @param stream Spark's stream from the worker. It has the worker's first bytes, and it watches
  *   over idle workers.
  * @param killAfterMs Spark kills a worker that is idle for so long; 0: never */
private[transport] final class WorkerPipe(
    worker: PythonWorker, stream: DataInputStream, killAfterMs: Long)
    extends InputStream with Logging {
  // Otherwise the second of two small frames waits for the worker's acknowledgement of the first.
  // A Unix socket has no such option.
  if (worker.channel.supportedOptions.contains(StandardSocketOptions.TCP_NODELAY))
    worker.channel.setOption(StandardSocketOptions.TCP_NODELAY, java.lang.Boolean.TRUE): Unit

  private val waiting = mutable.Queue.empty[ByteBuffer]
  private var broken = false
  var bytesOut = 0L
  var bytesIn = 0L

  override def read(): Int = {
    val one = new Array[Byte](1)
    if (read(one, 0, 1) < 0) -1 else one(0) & 0xff
  }

  override def read(into: Array[Byte], offset: Int, length: Int): Int = {
    val buffered = stream.available()
    val n =
      if (length == 0) 0
      else if (buffered > 0) stream.read(into, offset, math.min(buffered, length))
      else
        try exchange(into, offset, length)
        catch {
          case e: ClosedChannelException => throw e // this end closed it: the task is at its end
          // A worker that ends with input it has not read breaks the connection. Spark reports a
          // worker that ended, whichever way the end was noticed.
          case e: IOException => ended(e)
        }
    if (n > 0) bytesIn += n.toLong
    n
  }

  /** Let `frame` go out with the next reads. */
  def write(frame: ByteBuffer): Unit = {
    bytesOut += frame.remaining.toLong
    if (!broken) waiting += frame
  }

  /** Read at least a byte, and send what can be sent meanwhile. */
  private def exchange(into: Array[Byte], offset: Int, length: Int): Int = {
    val free = ByteBuffer.wrap(into, offset, length)
    var n = 0
    var idle = false
    while (n == 0 && !idle && !sent()) {
      idle = !progress()
      n = worker.channel.read(free)
    }
    if (n == 0) stream.read(into, offset, length) else n
  }

  /** Send what can be sent without waiting.
    *
    * @return whether nothing waits any more */
  private def sent(): Boolean = {
    try
      while (waiting.nonEmpty && worker.channel.write(waiting.head) > 0)
        if (!waiting.head.hasRemaining) waiting.dequeue(): Unit
    catch {
      case e: ClosedChannelException => throw e
      // The worker is gone. What it said before is still to be read.
      case e: IOException =>
        ended(e): Unit
        broken = true
        waiting.clear()
    }
    waiting.isEmpty
  }

  /** Wait until there is something to read, or room to write.
    *
    * @return false: the worker has been idle for so long that Spark kills it */
  private def progress(): Boolean = {
    val beganNanos = System.nanoTime
    worker.selectionKey.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE): Unit
    // it may say 0 of a channel that is ready and was so before
    val ready =
      try worker.selector.select(killAfterMs)
      finally worker.selectionKey.interestOps(SelectionKey.OP_READ): Unit
    ready > 0 || killAfterMs == 0 || (System.nanoTime - beganNanos) / 1000000 < killAfterMs
  }

  private def ended(e: IOException): Int = {
    logInfo(s"the connection to a Python worker broke: ${e.getMessage}")
    -1
  }
}
