package org.apache.spark.sql.millpond.rows

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state.{
  KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, PrefixKeyScanStateEncoderSpec,
  RangeKeyScanStateEncoderSpec, StateStoreErrors, TimestampAsPostfixKeyStateEncoderSpec,
  TimestampAsPrefixKeyStateEncoderSpec
}
import org.apache.spark.sql.millpond.base.{MillpondError, Names}
import org.apache.spark.sql.millpond.memory.TableShape

/** How the keys of a column family are encoded and where they lie; names are durable.
  *
  * @param crossKey the order of the family spans partition keys (timers, TTL, eviction by time):
  * all its rows lie in the reserved slot,
  *                 and the slot of their key group follows the key */
sealed abstract class FamilyKind(val name: String, val shape: TableShape, val crossKey: Boolean)

object FamilyKind {
  case object Point extends FamilyKind("point", TableShape.Plain, crossKey = false)
  case object Prefix extends FamilyKind("prefix", TableShape.Chained, crossKey = false)
  case object Range extends FamilyKind("range", TableShape.Sorted, crossKey = true)
  case object TimeFirst extends FamilyKind("time-first", TableShape.Sorted, crossKey = true)
  case object TimeLast extends FamilyKind("time-last", TableShape.Sorted, crossKey = false)

  private val all = Seq(Point, Prefix, Range, TimeFirst, TimeLast)
  def named(name: String): FamilyKind = all.find(_.name == name).getOrElse(
    throw MillpondError.of("FORMAT_TOO_NEW",
      s"a column family is of the kind '$name', which this Millpond does not know."))

  def of(spec: KeyStateEncoderSpec): FamilyKind = spec match {
    case _: NoPrefixKeyStateEncoderSpec => Point
    case _: PrefixKeyScanStateEncoderSpec => Prefix
    case _: RangeKeyScanStateEncoderSpec => Range
    case _: TimestampAsPrefixKeyStateEncoderSpec => TimeFirst
    case _: TimestampAsPostfixKeyStateEncoderSpec => TimeLast
    case other =>
      throw StateStoreErrors.unsupportedOperationException(other.getClass.getSimpleName,
        Names.Provider)
  }

  /** Number of leading key columns by which rows can be found, 0 if none. */
  def prefixColumns(spec: KeyStateEncoderSpec): Int = spec match {
    case p: PrefixKeyScanStateEncoderSpec => p.numColsPrefixKey
    case t: TimestampAsPostfixKeyStateEncoderSpec => t.keySchema.length - 1
    case _ => 0
  }

  /** Of the time at the end of an encoded key of `TimeLast`. */
  val TimeBytes = 8

  /** The slot of families whose order spans key groups. A family lies in slots of groups or in this
    * one, never in both, so it does not matter that the last group may have the same number. */
  val ReservedSlot = 0xFFFF

  /** Of a family: keys have two bytes for it. */
  val LargestId = 0xFFFF
}

/** The durable properties of a column family. `keyLead` and `valueLead` bytes lead every key and
  * value on disk but not in memory: the version byte of rows that are stored as they are. */
final case class FamilyShape(kind: FamilyKind, internal: Boolean, multi: Boolean,
    plainRows: Boolean) {
  val keyLead: Int = if (kind == FamilyKind.Point && plainRows) 1 else 0
  /** Bytes behind the key: the slot of the row's key group, where the family's order
    * spans key groups. */
  val keyTrail: Int = if (kind.crossKey) 2 else 0
  val valueLead: Int = if (plainRows && !multi) 1 else 0

  /** How much longer the physical key is than the encoded one. */
  def keyExtra: Int = 4 + keyLead + keyTrail
  /** The slot of the key group of a physical key, which lies in `[at, at + length)`. */
  def slotIn(key: Array[Byte], at: Int, length: Int): Int = {
    val where = if (keyTrail == 2) at + length - 2 else at
    ((key(where) & 0xFF) << 8) | (key(where + 1) & 0xFF)
  }
}

object FamilyShape {
  /** From the header of a changelog, or from a manifest. */
  def of(described: JsonNode): FamilyShape =
    FamilyShape(
      FamilyKind.named(described.path("kind").asText("point")),
      described.path("internal").asBoolean(false),
      described.path("multi").asBoolean(false),
      described.path("encoding").asText("unsaferow") == "unsaferow"
    )
}
