package org.apache.spark.sql.millpond.changelog

import java.nio.charset.StandardCharsets.ISO_8859_1

import org.apache.spark.sql.millpond.base.Op
import org.apache.spark.sql.millpond.testing.Trial

/** A record of a changelog. Keys and values are bytes as Latin-1 texts. Texts are easy to compare
  * and to print, and they are small. */
final case class Change(op: Byte, key: String, value: Option[String]) {
  /** Writes the record into a file. */
  def write(writer: ChangelogWriter): Unit = {
    val bytes = Change.bytes(key + value.getOrElse(""))
    writer.copy(op, bytes, 0, key.length, key.length, value.fold(-1)(_.length))
  }

  /** Returns the state after this record. */
  def applied(state: Change.State): Change.State = op match {
    case Op.Delete => state - key
    case Op.Put => state.updated(key, value.get)
    case Op.Merge => state.updated(key, state.getOrElse(key, "") + value.get)
  }

  override def toString: String = s"$op ${Change.hex(key)} ${value.fold(-1)(_.length)}"
}

object Change {
  type State = scala.collection.immutable.TreeMap[String, String]
  val Nothing: State = scala.collection.immutable.TreeMap.empty[String, String]

  def bytes(text: String): Array[Byte] = text.getBytes(ISO_8859_1)
  def text(bytes: Array[Byte]): String = new String(bytes, ISO_8859_1)
  def text(bytes: Array[Byte], at: Int, length: Int): String =
    new String(bytes, at, length, ISO_8859_1)
  def hex(text: String): String = java.util.HexFormat.of().formatHex(bytes(text))

  def read(op: Byte, block: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int,
      valueLength: Int): Change =
    Change(op, text(block, keyAt, keyLength),
      if (valueLength < 0) None else Some(text(block, valueAt, valueLength)))

  /** Returns bytes that compress well, or bytes that do not. */
  def some(trial: Trial, length: Int): String = {
    val bytes = new Array[Byte](length)
    if (trial.chance(50)) trial.random.nextBytes(bytes)
    else {
      val few = trial.random.nextInt(250)
      bytes.indices.foreach(i => bytes(i) = (few + trial.random.nextInt(4)).toByte)
    }
    text(bytes)
  }
}
