package org.apache.spark.sql.millpond.transport

import java.nio.charset.StandardCharsets.UTF_8
import java.util.{List => JavaList, Map => JavaMap}

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.CatalystTypeConverters
import org.apache.spark.sql.execution.python.EvaluatePython
import org.apache.spark.sql.types.{
  BinaryType, BooleanType, ByteType, DataType, DateType, DecimalType, IntegerType, LongType,
  ShortType, StringType, StructType, TimestampNTZType, TimestampType
}

/** Writes values as Python's pickle, straight from rows. It knows what the plain types need, and
  * nothing else: `python/src/millpond/transport/plain.py` decides which schemas are plain. */
private[millpond] final class PickleOut {
  private var bytes = new Array[Byte](1 << 12)
  private var used = 0

  def size: Int = used
  def reset(): Unit = used = 0
  def rewind(to: Int): Unit = used = to
  def writeTo(out: java.io.OutputStream): Unit = out.write(bytes, 0, used)

  private def room(more: Int): Unit =
    if (used + more > bytes.length)
      bytes = java.util.Arrays.copyOf(bytes, math.max(used + more, 2 * bytes.length))

  def op(code: Int): Unit = {
    room(1)
    bytes(used) = code.toByte
    used += 1
  }
  def beginList(): Unit = {
    op(']')
    op('(')
  }
  def endList(): Unit = op('e')
  def beginTuple(): Unit = op('(')
  def endTuple(): Unit = op('t')
  def none(): Unit = op('N')
  def stop(): Unit = op('.')

  def long(value: Long): Unit =
    if (value >= 0 && value < 256) {
      op('K')
      op(value.toInt)
    } else if (value == value.toInt) {
      op('J')
      littleEndian(value, 4)
    } else {
      op(0x8a)
      op(8)
      littleEndian(value, 8)
    }

  private def littleEndian(value: Long, width: Int): Unit = {
    room(width)
    var i = 0
    while (i < width) {
      bytes(used + i) = (value >>> (8 * i)).toByte
      i += 1
    }
    used += width
  }

  private def double(value: Double): Unit = {
    op('G')
    val bits = java.lang.Double.doubleToRawLongBits(value)
    littleEndian(java.lang.Long.reverseBytes(bits), 8)
  }

  private def string(value: String): Unit = sized('X', value.getBytes(UTF_8))
  private def binary(value: Array[Byte]): Unit = sized('B', value)

  private def sized(code: Int, value: Array[Byte]): Unit = {
    op(code)
    littleEndian(value.length.toLong, 4)
    room(value.length)
    System.arraycopy(value, 0, bytes, used, value.length)
    used += value.length
  }

  /** As Python's `Decimal`, made of the text. */
  private def decimal(value: java.math.BigDecimal): Unit = {
    ascii("cdecimal\nDecimal\n")
    string(value.toEngineeringString)
    op(0x85)
    op('R')
  }

  private def ascii(text: String): Unit = text.foreach(c => op(c.toInt))

  /** A row of plain types as a tuple, in the form that Spark pickles: dates are days, and times are
    * microseconds. A struct is a tuple, too. */
  def row(row: Row): Unit = tuple(row) {
    case (nested @ (_: Row | _: scala.collection.Seq[_] | _: scala.collection.Map[_, _]), i) =>
      // Spark's form of a map has the order that Python sees
      field(EvaluatePython.toJava(
        CatalystTypeConverters.convertToCatalyst(nested), row.schema(i).dataType, false))
    case (other, _) => field(other)
  }

  private def tuple(row: Row)(write: (Any, Int) => Unit): Unit = {
    val width = row.length
    if (width > 3) op('(')
    var i = 0
    while (i < width) {
      write(row.get(i), i)
      i += 1
    }
    if (width > 3) op('t') else if (width == 0) op(')') else op(0x84 + width)
  }

  private def list(values: JavaList[_]): Unit = {
    beginList()
    values.forEach(field(_))
    endList()
  }

  private def dict(entries: JavaMap[_, _]): Unit = {
    op('}')
    op('(')
    entries.forEach { (key, value) =>
      field(key)
      field(value)
    }
    op('u')
  }

  private def field(value: Any): Unit = value match {
    case null => none()
    case b: Boolean => op(if (b) 0x88 else 0x89)
    case n: Long => long(n)
    case n: Int => long(n.toLong)
    case n: Short => long(n.toLong)
    case n: Byte => long(n.toLong)
    case d: Double => double(d)
    case f: Float => double(f.toDouble)
    case s: String => string(s)
    case b: Array[Byte] => binary(b)
    case d: java.math.BigDecimal => decimal(d)
    case struct: Row => tuple(struct)((value, _) => field(value))
    case values: JavaList[_] => list(values)
    case entries: JavaMap[_, _] => dict(entries)
    case other => field(CatalystTypeConverters.convertToCatalyst(other))
  }
}

private[millpond] object PickleOut {
  /** The pickle of `function(command, settings)`, which is the function of that name in `source`:
    * whoever loads it needs no module but Python's own. */
  def call(
      source: String,
      function: String,
      command: Array[Byte],
      settings: String
  ): Array[Byte] = {
    val out = new PickleOut
    // eval(expression, names)
    out.op('c')
    out.ascii("builtins\neval\n")
    out.beginTuple()
    out.string(s"[scope := {}, exec(source, scope), scope['$function'](command, settings)][-1]")
    out.beginTuple()
    out.string("source")
    out.string(source)
    out.string("command")
    out.binary(command)
    out.string("settings")
    out.string(settings)
    out.op('d')
    out.endTuple()
    out.op('R')
    out.stop()
    java.util.Arrays.copyOf(out.bytes, out.used)
  }

  /** Whether keys of this type mean the same in Python as in the JVM: equal here if and only if
    * they are equal there. A struct is a dict there. At an array Spark's worker ends: it reads the
    * key's schema in lower case, so it knows no `elementType`. */
  def isPlainKey(dataType: DataType): Boolean = dataType match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType => true
    case BinaryType | DateType | TimestampType | TimestampNTZType => true
    case _: DecimalType => true // all have the digits of the type
    case text: StringType => text == StringType
    case StructType(fields) =>
      fields.nonEmpty && fields.forall(field => isPlainKey(field.dataType))
    case _ => false
  }
}
