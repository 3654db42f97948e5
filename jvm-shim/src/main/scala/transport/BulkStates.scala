package org.apache.spark.sql.millpond.transport

import java.io.ByteArrayInputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.util.{List => JavaList}

import scala.collection.mutable

import net.razorvine.pickle.Unpickler

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.execution.python.EvaluatePython
import org.apache.spark.sql.execution.python.streaming.{
  ListStateInfo, MapStateInfo, ValueStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  ImplicitGroupingKeyTracker, StatefulProcessorHandleImpl
}
import org.apache.spark.sql.millpond.base.{LimitedReads, MillpondError}
import org.apache.spark.sql.types.StructType

/** A row as it comes from the worker, as Spark's state server would read it. */
private final class RowIn(schema: StructType, deserializer: ExpressionEncoder.Deserializer[Row]) {
  private val fromJava = EvaluatePython.makeFromJava(schema)
  def apply(value: Any): Row = deserializer(fromJava(value).asInstanceOf[InternalRow])
}

/** One state variable whose values travel in bulk. It reads and writes through Spark's own state
  * classes, so every byte in the store is theirs. */
private sealed abstract class BulkVariable {
  /** The state of the implicit key; nothing of a collection that is larger than the limits. */
  def read(out: PickleOut, limits: Limits): Unit

  /** Apply one change to the implicit key. */
  def apply(operation: Int, value: Any): Unit

  protected def unknown(operation: Int): Nothing =
    throw MillpondError.internal(s"a worker sent the unknown state operation $operation")
}

/** How many entries and bytes of one key's collection come along with its rows. */
private[millpond] final case class Limits(entries: Int, bytes: Int)

private final class BulkValue(info: ValueStateInfo) extends BulkVariable {
  private val rowIn = new RowIn(info.schema, info.deserializer)
  override def read(out: PickleOut, limits: Limits): Unit = info.valueState.get() match {
    case null => out.none()
    case row => out.row(row)
  }
  override def apply(operation: Int, value: Any): Unit = operation match {
    case Operation.Update => info.valueState.update(rowIn(value))
    case Operation.Clear => info.valueState.clear()
    case other => unknown(other)
  }
}

private final class BulkList(info: ListStateInfo, reads: LimitedReads) extends BulkVariable {
  private val rowIn = new RowIn(info.schema, info.deserializer)
  override def read(out: PickleOut, limits: Limits): Unit =
    reads.ofShortList(limits.entries, limits.bytes * Collections.StoredBytes)(
      info.listState.get()) match {
      case Some(values) => Collections.read(out, limits, values)(out.row): Unit
      case None => out.none()
    }
  private def rows(value: Any): Array[Row] = {
    val values = value.asInstanceOf[JavaList[Any]]
    Array.tabulate(values.size)(i => rowIn(values.get(i)))
  }
  override def apply(operation: Int, value: Any): Unit = operation match {
    case Operation.Append => info.listState.appendValue(rowIn(value))
    case Operation.AppendList => info.listState.appendList(rows(value))
    case Operation.Put => info.listState.put(rows(value))
    case Operation.Clear => info.listState.clear()
    case other => unknown(other)
  }
}

private final class BulkMap(info: MapStateInfo, reads: LimitedReads) extends BulkVariable {
  private val keyIn = new RowIn(info.keySchema, info.keyDeserializer)
  private val valueIn = new RowIn(info.valueSchema, info.valueDeserializer)
  override def read(out: PickleOut, limits: Limits): Unit = {
    val all = Collections.read(out, limits, info.mapState.iterator()) { case (key, value) =>
      out.row(key)
      out.row(value)
      out.op(0x86)
    }
    if (!all) reads.endPrefixScan()
  }
  override def apply(operation: Int, value: Any): Unit = operation match {
    case Operation.UpdateEntry =>
      val pair = value.asInstanceOf[Array[Any]]
      info.mapState.updateValue(keyIn(pair(0)), valueIn(pair(1)))
    case Operation.RemoveEntry => info.mapState.removeKey(keyIn(value))
    case Operation.Clear => info.mapState.clear()
    case other => unknown(other)
  }
}

private object Collections {
  /** A value has in the store up to about so many times the bytes that it has on its way. */
  val StoredBytes = 8

  /** Write all entries as a list, or nothing if there are too many. Returns whether it is all. */
  def read[A](out: PickleOut, limits: Limits, entries: Iterator[A])(write: A => Unit): Boolean = {
    val began = out.size
    out.beginList()
    var left = limits.entries
    while (left >= 0 && entries.hasNext)
      if (left == 0 || out.size - began > limits.bytes) left = -1
      else {
        write(entries.next())
        left -= 1
      }
    if (left >= 0) out.endList()
    else {
      out.rewind(began)
      out.none()
    }
    left >= 0
  }
}

private object Operation {
  val Update = 0
  val Clear = 1
  val Put = 2
  val Append = 3
  val AppendList = 4
  val UpdateEntry = 5
  val RemoveEntry = 6
  val RegisterTimer = 7
  val DeleteTimer = 8
  /** So many expired timers are done with. */
  val Fired = 9
  /** A change's code is the operation, and the variable's number times this. */
  val Variables = 16
}

/** The keys whose state a worker has, or will get, and the variables that travel in bulk.
  *
  * @param reads how the store ends a read of a large state */
private[transport] final class BulkStates(
    handle: StatefulProcessorHandleImpl, declared: StateVariables, limits: Limits,
    reads: LimitedReads) {
  private var variables = IndexedSeq.empty[BulkVariable]
  private var buffers = IndexedSeq.empty[PickleOut]
  private val keys = mutable.ArrayDeque.empty[Row]
  private var firstKey = 0 // the number of the first in `keys`
  private val expired = mutable.ArrayDeque.empty[Expired] // that the worker is not done with
  private val unpickler = new Unpickler

  var values = 0L // that went to the worker without a call
  var changes = 0L // that came back without a call
  var timersDone = 0L

  /** @param asked kind and name of each variable */
  def declare(asked: Iterable[(String, String)]): Unit = {
    variables = asked.map {
      case ("value", name) => new BulkValue(declared.values(name))
      case ("list", name) => new BulkList(declared.lists(name), reads)
      case ("map", name) => new BulkMap(declared.maps(name), reads)
      case (kind, _) => throw MillpondError.internal(s"a worker asked for a state of kind $kind")
    }.toIndexedSeq
    buffers = variables.map(_ => new PickleOut)
  }

  def key(number: Int): Row = keys(number - firstKey)

  /** Add a key, and its state to what [[writeTo]] writes. */
  def add(key: Row): Int = {
    keys += key
    ImplicitGroupingKeyTracker.setImplicitKey(key)
    var i = 0
    while (i < variables.size) {
      if (buffers(i).size == 0) buffers(i).beginList()
      variables(i).read(buffers(i), limits)
      i += 1
    }
    values += variables.size.toLong
    firstKey + keys.size - 1
  }

  /** Expect [[Operation.Fired]] for a timer of the key with this number. Timers fire in the order
    * of these calls. */
  def expires(number: Int, timeMs: Long): Unit = expired += new Expired(number, timeMs)

  def bytes: Int = {
    var sum = 0
    var i = 0
    while (i < buffers.size) {
      sum += buffers(i).size
      i += 1
    }
    sum
  }

  /** Write a list for each variable that has its state of each key added since the last call. */
  def writeTo(out: java.io.OutputStream): Unit = {
    out.write(']')
    if (buffers.nonEmpty) {
      out.write('(')
      buffers.foreach { buffer =>
        if (buffer.size == 0) buffer.beginList()
        buffer.endList()
        buffer.writeTo(out)
        buffer.reset()
      }
      out.write('e')
    }
  }

  /** Whether the user's code may still be at this. */
  def isAt(turn: Turn): Boolean = turn.key >= firstKey && turn.timers == timersDone

  /** Forget the `count` oldest keys. */
  def release(count: Int): Unit = {
    keys.remove(0, count)
    firstKey += count
  }

  /** Apply changes in their order.
    *
    * @param payload has at `at`, `length` bytes long: their count, each one's key's number, each
    *   one's code, as the worker's machine writes such numbers, which is this one; and a pickled
    *   list of their values */
  def apply(payload: Array[Byte], at: Int, length: Int): Unit = {
    val numbers = ByteBuffer.wrap(payload, at, length).order(ByteOrder.nativeOrder)
    val count = numbers.getInt()
    val codesAt = at + 4 * (1 + count)
    val valuesAt = codesAt + 4 * count
    val pickled = new ByteArrayInputStream(payload, valuesAt, at + length - valuesAt)
    val values = unpickler.load(pickled).asInstanceOf[JavaList[Any]]
    var current = -1
    var i = 0
    while (i < count) {
      val number = numbers.getInt(at + 4 * (1 + i))
      if (number != current) {
        ImplicitGroupingKeyTracker.setImplicitKey(key(number))
        current = number
      }
      val code = numbers.getInt(codesAt + 4 * i)
      val value = values.get(i)
      code % Operation.Variables match {
        case Operation.RegisterTimer => handle.registerTimer(value.asInstanceOf[Number].longValue)
        case Operation.DeleteTimer => handle.deleteTimer(value.asInstanceOf[Number].longValue)
        case Operation.Fired =>
          val fired = value.asInstanceOf[Int]
          deleteExpired(fired)
          timersDone += fired.toLong
          current = -1
          changes += fired.toLong - 1 // a change each
        case operation => variables(code / Operation.Variables)(operation, value)
      }
      i += 1
    }
    changes += count.toLong
  }

  /** Delete the `count` oldest timers that a worker is not done with, each as its key's, as Spark
    * does after each call of the user's code. */
  private def deleteExpired(count: Int): Unit = {
    var left = count
    while (left > 0) {
      val timer = expired.removeHead()
      ImplicitGroupingKeyTracker.setImplicitKey(key(timer.key))
      handle.deleteTimer(timer.timeMs)
      left -= 1
    }
  }
}

/** @param key its number */
private final class Expired(val key: Int, val timeMs: Long)
