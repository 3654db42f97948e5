package org.apache.spark.sql.millpond.transport

import java.io.{ByteArrayOutputStream, DataOutputStream}
import java.nio.ByteBuffer

/** The messages between JVM and worker: a length, a kind, a payload.
  * `python/src/millpond/transport/wire.py` has the other end. */
private[transport] object Frame {
  // to the worker
  val Schema = 'H'
  val Data = 'D'
  val Timers = 'T'
  val PhaseOver = 'P'
  val Answer = 'A'
  // from the worker
  val Ready = 'R'
  val Call = 'C'
  val Result = 'O'
  val Done = 'Z'
  val Refused = 'N'

  /** A frame that is written part by part. */
  final class Builder(kind: Char) {
    private val bytes = new Exposed
    val out = new DataOutputStream(bytes)
    out.writeInt(0)
    out.writeByte(kind.toInt)

    /** Pad to where Arrow may begin: at a multiple of 8 bytes after the length. */
    def align(): Unit = while ((out.size - 4) % 8 != 0) out.writeByte(0)

    def result: ByteBuffer = {
      out.flush()
      val frame = bytes.view
      frame.putInt(0, frame.remaining - 4)
      frame
    }
  }

  private final class Exposed extends ByteArrayOutputStream(1 << 12) {
    def view: ByteBuffer = ByteBuffer.wrap(buf, 0, count)
  }
}
