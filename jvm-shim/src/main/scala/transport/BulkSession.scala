package org.apache.spark.sql.millpond.transport

import java.io.{ByteArrayInputStream, DataInputStream}
import java.nio.channels.Channels
import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import net.razorvine.pickle.Unpickler
import org.apache.arrow.vector.{VectorLoader, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.ReadChannel
import org.apache.arrow.vector.ipc.message.MessageSerializer

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  ImplicitGroupingKeyTracker, StatefulProcessorHandleImpl, StatefulProcessorHandleState
}
import org.apache.spark.sql.millpond.base.MillpondError
import org.apache.spark.sql.streaming.TimeMode
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}

/** One partition's conversation with its worker, on the task's thread alone: no other touches the
  * state store. Phases follow each other: initial state, rows, expired timers. A phase begins when
  * all changes of the one before it are in the store.
  *
  * Within a phase, two frames may be on their way ahead of the changes, because no key is in both
  * of them. Changes are applied before the results that came with them go on. */
private[transport] final class BulkSession(
    partition: BulkPartition, handle: StatefulProcessorHandleImpl, val metrics: BulkMetrics) {
  private val operator = partition.operator
  private val calls = new StateCalls(handle, operator, partition.reads)
  private val states = new BulkStates(handle, calls.variables, operator.limits, partition.reads)
  private val arrow = new ArrowMemory(operator)
  private val Ahead = 2
  private val phases = mutable.Queue.empty[Phase]
  private var output: VectorSchemaRoot = _
  private val beganNanos = System.nanoTime

  /** Why the worker takes no part, once it has said so. It has got nothing then. */
  var refused: Option[String] = None

  /** Whether the worker has said that nothing more comes. */
  var isDone = false

  /** Frames of one phase.
    *
    * @param make is called when the phase begins
    * @param after the state of Spark's handle when the phase is over; none: it stays
    * @param idle it has no frames whatever comes before it, so it need not wait for that */
  private final class Phase(
      make: => Frames,
      val after: Option[StatefulProcessorHandleState.Value],
      val idle: Boolean = false) {
    private lazy val frames = make
    private lazy val first = mutable.Queue.from(frames.first)
    private var sent = 0
    private var over = false
    def isOver: Boolean = over
    def send(pipe: WorkerPipe): Unit = {
      first.removeAll().foreach(pipe.write)
      while (!over && sent < Ahead && frames.hasNext && frames.isReady) {
        pipe.write(frames.next())
        sent += 1
      }
      if (!over && !frames.hasNext && sent < Ahead) {
        over = true
        pipe.write(new Frame.Builder(Frame.PhaseOver).result)
      }
    }
    def consumed(): Unit = {
      sent -= 1
      frames.consumed()
    }
  }

  private def dataPhase(
      rows: BulkRows, after: Option[StatefulProcessorHandleState.Value]): Phase = {
    def frames = new DataFrames(rows.groups, operator.keyOf, states,
      arrow.root(rows.schema), operator.frameSize)
    new Phase(frames, after)
  }

  private def timerPhase: Phase = {
    val until = operator.timeMode match {
      case mode if mode == TimeMode.EventTime() => Some(operator.watermarkMs.getOrElse(-1L))
      case mode if mode == TimeMode.ProcessingTime() =>
        Some(operator.batchTimestampMs.getOrElse(-1L))
      case _ => None
    }
    // tasks without an expired timer do without it
    lazy val serialize = operator.keyEncoder.createSerializer()
    def frames = new TimerFrames(
      until.fold(Iterator.empty[(Any, Long)])(handle.getExpiredTimers(_)),
      serialize(_).asInstanceOf[UnsafeRow], states, operator.frameSize)
    new Phase(frames, Some(StatefulProcessorHandleState.TIMER_PROCESSED), until.isEmpty)
  }

  /** Send what may be sent before the worker's next frame is read. */
  def pump(pipe: WorkerPipe): Unit = phases.headOption.foreach { phase =>
    phase.send(pipe)
    if (phase.isOver) phases.drop(1).headOption.filter(_.idle).foreach(_.send(pipe))
  }

  /** Handle a frame of the worker.
    *
    * @return rows of results, if the frame has some; valid until the next call */
  def handle(payload: Array[Byte], pipe: WorkerPipe): Option[ColumnarBatch] = {
    val in = new DataInputStream(new ByteArrayInputStream(payload))
    in.readByte().toChar match {
      case Frame.Call =>
        val key = in.readInt()
        if (key >= 0) ImplicitGroupingKeyTracker.setImplicitKey(states.key(key))
        else ImplicitGroupingKeyTracker.removeImplicitKey()
        val frame = new Frame.Builder(Frame.Answer)
        frame.out.write(calls.answer(in.readAllBytes(), Turn(key, states.timersDone)))
        pipe.write(frame.result)
        None
      case Frame.Ready =>
        ready(in)
        None
      case Frame.Result => result(in, payload)
      case Frame.Done =>
        // Spark's server answers nothing after a failed call, so no task ends well that had one,
        // also where the user's code caught it
        calls.failure.foreach(throw _)
        isDone = true
        handle.setHandleState(StatefulProcessorHandleState.CLOSED)
        val userMs = in.readLong() / 1000000
        metrics.add(Map(
          "Calls" -> calls.count,
          "CallsSaved" -> (states.values + states.changes),
          "SentBytes" -> pipe.bytesOut,
          "ReceivedBytes" -> pipe.bytesIn,
          "UserMs" -> userMs,
          "TransportMs" -> math.max(0, (System.nanoTime - beganNanos) / 1000000 - userMs)
        ))
        None
      case Frame.Refused =>
        refused = Some(new String(in.readAllBytes(), UTF_8))
        None
      case other => throw MillpondError.internal(s"a worker sent a frame of kind $other")
    }
  }

  private def ready(in: DataInputStream): Unit = {
    val declared = new Array[Byte](in.readInt())
    in.readFully(declared)
    states.declare(
      new Unpickler().loads(declared).asInstanceOf[java.util.List[Array[Any]]].asScala.map(
        pair => pair(0).toString -> pair(1).toString))
    output = arrow.root(
      MessageSerializer.deserializeSchema(new ReadChannel(Channels.newChannel(in))))
    handle.setHandleState(StatefulProcessorHandleState.INITIALIZED)
    partition.initialState.foreach(rows => phases += dataPhase(rows, None))
    phases += dataPhase(partition.data, Some(StatefulProcessorHandleState.DATA_PROCESSED))
    phases += timerPhase
  }

  private def result(in: DataInputStream, payload: Array[Byte]): Option[ColumnarBatch] = {
    val consumed = in.readBoolean()
    val phaseOver = in.readBoolean()
    val keysDone = in.readInt()
    val changes = in.readInt()
    if (changes > 0) states.apply(payload, payload.length - in.available, changes)
    in.skipNBytes(changes.toLong)
    states.release(keysDone)
    if (!states.isAt(calls.turn)) calls.endTurn()
    if (consumed) phases.head.consumed()
    if (phaseOver) phases.dequeue().after.foreach(handle.setHandleState)
    val at = payload.length - in.available
    val aligned = (at + 7) / 8 * 8
    if (aligned >= payload.length) None
    else {
      in.skipNBytes((aligned - at).toLong)
      val batch = MessageSerializer.deserializeRecordBatch(
        new ReadChannel(Channels.newChannel(in)), arrow.allocator)
      try new VectorLoader(output).load(batch)
      finally batch.close()
      val columns =
        output.getFieldVectors.asScala.map(new ArrowColumnVector(_): ColumnVector).toArray
      Some(new ColumnarBatch(columns, output.getRowCount))
    }
  }

  def close(): Unit = {
    ImplicitGroupingKeyTracker.removeImplicitKey() // the thread goes on with other tasks
    arrow.close()
  }
}

/** Rows by key, sorted as Spark sorts them for this operator.
  *
  * @param offsets which columns are the key's, and which the user's, as Spark writes them */
private[millpond] final case class BulkRows(
    groups: Iterator[(InternalRow, Iterator[InternalRow])],
    schema: org.apache.spark.sql.types.StructType,
    offsets: Array[Int]
)
