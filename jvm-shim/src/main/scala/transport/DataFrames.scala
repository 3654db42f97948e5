package org.apache.spark.sql.millpond.transport

import java.nio.ByteBuffer
import java.nio.channels.Channels

import org.apache.arrow.vector.{VectorSchemaRoot, VectorUnloader}
import org.apache.arrow.vector.ipc.WriteChannel
import org.apache.arrow.vector.ipc.message.MessageSerializer

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.arrow.ArrowWriter

/** When a frame is full. */
private[millpond] final case class FrameSize(rows: Int, bytes: Long)

/** The frames of a phase. */
private[transport] trait Frames {
  /** What goes before them. */
  def first: Option[ByteBuffer] = None
  def hasNext: Boolean

  /** Whether the next frame may be made while others are on their way. */
  def isReady: Boolean = true
  def next(): ByteBuffer

  /** The changes of the oldest frame that was on its way are in the store. */
  def consumed(): Unit = ()
}

/** Frames of rows with the state of their keys. A key's rows may go on in the next frame; its state
  * is in the first one. The rest of a long key's rows is a frame of its own.
  *
  * @param root columns of the rows; used for one frame after the other */
private[transport] final class DataFrames(
    groups: Iterator[(InternalRow, Iterator[InternalRow])],
    keyOf: InternalRow => Row,
    states: BulkStates,
    root: VectorSchemaRoot,
    limit: FrameSize
) extends Frames {
  private val writer = ArrowWriter.create(root)
  private var rows: Iterator[InternalRow] = Iterator.empty

  /** The columns of all frames. */
  override def first: Option[ByteBuffer] = {
    val frame = new Frame.Builder(Frame.Schema)
    frame.out.write(root.getSchema.serializeAsMessage())
    Some(frame.result)
  }

  override def hasNext: Boolean = rows.hasNext || groups.hasNext

  override def next(): ByteBuffer = {
    val counts = Array.newBuilder[Int]
    val goesOn = rows.hasNext
    var groupCount = 0
    var rowCount = 0
    var bytes = 0L
    def full = rowCount >= limit.rows || bytes >= limit.bytes

    def fill(): Unit = {
      var count = 0
      while (rows.hasNext && (count == 0 || !full)) { // a key begins with a row
        val row = rows.next()
        writer.write(row)
        bytes += (row match {
          case unsafe: UnsafeRow => unsafe.getSizeInBytes.toLong
          case _ => 64L
        })
        count += 1
        rowCount += 1
      }
      counts += count
      groupCount += 1
      // Spark's iterator over a key's rows goes on with the next key's when those are asked for
      if (!rows.hasNext) rows = Iterator.empty
    }
    if (goesOn) fill()
    while (!goesOn && !full && !rows.hasNext && groups.hasNext) {
      val (key, its) = groups.next()
      val before = states.bytes
      states.add(keyOf(key))
      bytes += (states.bytes - before).toLong
      rows = its
      fill()
    }
    writer.finish()

    val frame = new Frame.Builder(Frame.Data)
    frame.out.writeInt(groupCount)
    frame.out.writeBoolean(goesOn)
    frame.out.writeBoolean(rows.hasNext)
    counts.result().foreach(frame.out.writeInt)
    val head = frame.out.size
    frame.out.writeInt(0)
    states.writeTo(frame.out)
    frame.out.writeByte('.'.toInt)
    val stateBytes = frame.out.size - head - 4
    frame.align()
    val batch = new VectorUnloader(root).getRecordBatch
    try MessageSerializer.serialize(new WriteChannel(Channels.newChannel(frame.out)), batch): Unit
    finally batch.close()
    writer.reset()
    val result = frame.result
    result.putInt(head, stateBytes)
    result
  }
}
