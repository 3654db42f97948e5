package org.apache.spark.sql.millpond.transport

import java.io.{DataInputStream, EOFException, InputStream}
import java.net.StandardSocketOptions
import java.nio.ByteBuffer
import java.nio.channels.SelectionKey

import org.apache.spark.api.python.PythonWorker

/** Both directions of a worker's socket, for a thread that writes when it wants to. Spark's own
  * stream writes while it reads, and cannot wait with input that is not decided yet. Both ends may
  * write at the same time: what arrives while this one writes is kept.
  *
  * @param stream Spark's stream from the worker. It has the worker's first bytes, and it watches
  *   over idle workers. */
private[transport] final class WorkerPipe(worker: PythonWorker, stream: DataInputStream)
    extends InputStream {
  // Otherwise the second of two small frames waits for the worker's acknowledgement of the first.
  // A Unix socket has no such option.
  if (worker.channel.supportedOptions.contains(StandardSocketOptions.TCP_NODELAY))
    worker.channel.setOption(StandardSocketOptions.TCP_NODELAY, java.lang.Boolean.TRUE): Unit

  private var kept = ByteBuffer.allocate(0)
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
      else if (kept.hasRemaining) {
        val some = math.min(kept.remaining, length)
        kept.get(into, offset, some)
        some
      } else stream.read(into, offset, length)
    if (n > 0) bytesIn += n.toLong
    n
  }

  /** Write all of `frame`. */
  def write(frame: ByteBuffer): Unit = {
    bytesOut += frame.remaining.toLong
    while (frame.hasRemaining)
      if (worker.channel.write(frame) == 0) {
        worker.selectionKey.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE): Unit
        try {
          worker.selector.select(): Unit
          keepWhatArrived()
        } finally worker.selectionKey.interestOps(SelectionKey.OP_READ): Unit
      }
  }

  private def keepWhatArrived(): Unit = {
    val arrived = ByteBuffer.allocate(1 << 16)
    worker.channel.read(arrived) match {
      case -1 => throw new EOFException
      case 0 =>
      case _ =>
        arrived.flip()
        val both = ByteBuffer.allocate(kept.remaining + arrived.remaining)
        both.put(kept).put(arrived).flip()
        kept = both
    }
  }
}
