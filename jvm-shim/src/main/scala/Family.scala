package org.apache.spark.sql.millpond

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  AvroStateEncoder, KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, PrefixKeyScanStateEncoderSpec,
  RangeKeyScanStateEncoderSpec, RocksDBDataEncoder, RocksDBStateEncoder, RocksDBValueStateEncoder,
  StateSchemaProvider, StateStoreErrors, TimestampAsPostfixKeyStateEncoderSpec,
  TimestampAsPrefixKeyStateEncoderSpec, UnsafeRowDataEncoder
}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** How the keys of a column family are encoded and where they lie; names are durable.
  *
  * @param crossKey the order of the family spans partition keys (timers, TTL, eviction by time): all its rows lie in the reserved slot,
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
    case other => throw StateStoreErrors.unsupportedOperationException(other.getClass.getSimpleName,
        MillpondStateStoreProvider.Name)
  }

  /** Number of leading key columns by which rows can be found, 0 if none. */
  def prefixColumns(spec: KeyStateEncoderSpec): Int = spec match {
    case p: PrefixKeyScanStateEncoderSpec => p.numColsPrefixKey
    case t: TimestampAsPostfixKeyStateEncoderSpec => t.keySchema.length - 1
    case _ => 0
  }

  /** The slot of families whose order spans key groups. A family lies in slots of groups or in this one, never in both, so it does not
    * matter that the last group may have the same number. */
  val ReservedSlot = 0xFFFF
}

/** What is durable about a column family beside its rows. `keyLead` and `valueLead` bytes lead every key and value on disk but not in memory:
  * the version byte of rows that are stored as they are. */
final case class FamilyShape(kind: FamilyKind, internal: Boolean, multi: Boolean,
    plainRows: Boolean) {
  val keyLead: Int = if (kind == FamilyKind.Point && plainRows) 1 else 0
  /** Bytes behind the key: the slot of the row's key group, where the family's order spans key groups. */
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

/** The rows of one column family: their memory tier, and how Spark's rows become bytes. Not thread-safe. */
final class Family(val name: String, val id: Int, val shape: FamilyShape, budget: MemoryBudget) {
  var table = new Table(budget, shape.kind.shape)
  /** Part of the state. Else a reader only made it known (or the operator did at another version): it has no rows. */
  var exists = false
  /** Dropped by the job; its deletes must still reach the disk tier. */
  var removed = false
  var removedBefore = false // when the batch began
  var removedAt =
    0L // version of the changelog that deletes its rows; not yet committed: Family.Uncommitted
  var backAt = 0L // version of the changelog that made it anew after that; likewise
  private var removedAtBefore = 0L
  var createdAt = Family.Uncommitted // a version whose changelog or snapshot lists it
  private var codec: FamilyCodec = null
  /** The session that checked the form of a row of this family. */
  var validatedBy: AnyRef = null

  /** The running batch drops it. */
  def remove(): Unit = {
    removed = true
    removedAtBefore = removedAt
    removedAt = Family.Uncommitted
  }

  /** The running batch makes it part of the state, perhaps anew. */
  def bringBack(): Unit = {
    exists = true
    if (removed) {
      removed = false
      if (removedAt == Family.Uncommitted) removedAt = removedAtBefore
      else backAt = Family.Uncommitted
    }
  }

  /** Whether it was dropped as of a version, whatever came after it. */
  def wasRemoved(asOf: Long): Boolean = removedAt <= asOf && (removed || backAt > asOf)

  /** What the batch did to it is part of a version now. */
  def committed(version: Long): Unit = {
    if (removed && removedAt == Family.Uncommitted) removedAt = version
    if (backAt == Family.Uncommitted) backAt = version
    if (exists && createdAt == Family.Uncommitted) createdAt = version
  }

  /** What the batch did to it is taken back. */
  def undo(): Unit = {
    if (removedAt == Family.Uncommitted) removedAt = removedAtBefore
    if (backAt == Family.Uncommitted) backAt = 0L
    removed = removedBefore
  }

  def kind: FamilyKind = shape.kind
  def keyLead: Int = shape.keyLead
  def keyExtra: Int = shape.keyExtra
  def valueLead: Int = shape.valueLead
  def isRegistered: Boolean = codec != null && !removed
  def register(newCodec: FamilyCodec): Unit = codec = newCodec
  def rows: FamilyCodec = codec

  /** Length of the scan prefix within an encoded key (kind prefix only). */
  def prefixLength(base: AnyRef, offset: Long): Int =
    if (kind == FamilyKind.Prefix) FamilyCodec.prefixLength(base, offset) else 0

  def close(): Unit = table.close()
}

object Family {
  val Uncommitted: Long = Long.MaxValue
}

/** Rows to bytes and back, for one column family as an operator registered it. The encoded key of the last call lies in `base`, `offset`,
  * `length`, the encoded value in `valueBase`, `valueOffset`, `valueLength`. */
final class FamilyCodec(val shape: FamilyShape, val keySchema: StructType,
    val valueSchema: StructType, spec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean, schemas: Option[StateSchemaProvider], familyName: String,
    val partitionKey: PartitionKey) {
  /** Whether rows of this definition can be encoded and decoded here. */
  def isFor(d: MillpondStateStoreProvider.FamilyDefinition): Boolean =
    d.valueSchema == valueSchema && d.spec == spec

  private val dataEncoder: RocksDBDataEncoder =
    if (shape.plainRows) new UnsafeRowDataEncoder(spec, valueSchema)
    else new AvroStateEncoder(spec, valueSchema, schemas, familyName)
  private val keyEncoder = if (shape.keyLead == 1) null
  else RocksDBStateEncoder.getKeyEncoder(dataEncoder, spec, useColumnFamilies)
  private val valueEncoder: RocksDBValueStateEncoder = if (shape.valueLead == 1) null
  else RocksDBStateEncoder.getValueEncoder(dataEncoder, valueSchema, false, 0)
  private val keyFields = spec.keySchema.length
  private val valueFields = valueSchema.length

  var base: AnyRef = null
  var offset = 0L
  var length = 0
  var valueBase: AnyRef = null
  var valueOffset = 0L
  var valueLength = 0

  def encodeKey(row: UnsafeRow): Unit =
    if (shape.keyLead == 1) {
      base = row.getBaseObject; offset = row.getBaseOffset; length = row.getSizeInBytes;
      checkSize(0L)
    } else keyBytes(keyEncoder.encodeKey(row))

  def canScanPrefix: Boolean = keyEncoder != null && keyEncoder.supportPrefixKeyScan
  def encodePrefix(row: UnsafeRow): Unit = keyBytes(keyEncoder.encodePrefixKey(row))

  /** The encoded full key as an array of its own. */
  def keyOf(row: UnsafeRow): Array[Byte] = {
    encodeKey(row)
    keyCopy()
  }

  /** A copy of the key that was encoded last. */
  def keyCopy(): Array[Byte] = {
    val copy = new Array[Byte](length)
    Bytes.copy(base, offset, copy, Bytes.ArrayOffset, length)
    copy
  }

  private def keyBytes(encoded: Array[Byte]): Unit = {
    base = encoded; offset = Bytes.ArrayOffset; length = encoded.length; checkSize(0L)
  }

  /** Refuse what is too large for a row: a value of so many bytes, with the key of the last call. */
  def checkSize(valueBytes: Long): Unit = if (length + valueBytes > RowLimit.MostBytes)
    throw RowLimit.exceeded(familyName, length + valueBytes)

  def encodeValue(row: UnsafeRow): Unit =
    if (shape.valueLead == 1) {
      valueBase = row.getBaseObject; valueOffset = row.getBaseOffset;
      valueLength = row.getSizeInBytes; checkSize(valueLength.toLong)
    } else if (shape.multi) encodeList(row)
    else valueBytes(valueEncoder.encodeValue(row))

  /** Values of a key with several: each led by its length, one after the other. */
  def encodeList(rows: UnsafeRow*): Unit = {
    val encoded = rows.map(valueEncoder.encodeValue)
    val bytes = encoded.iterator.map(_.length + 4L).sum
    checkSize(bytes)
    val out = new Array[Byte](bytes.toInt)
    var at = 0
    encoded.foreach { e =>
      Platform.putInt(out, Bytes.ArrayOffset + at, e.length)
      System.arraycopy(e, 0, out, at + 4, e.length)
      at += 4 + e.length
    }
    valueBytes(out)
  }

  private def valueBytes(encoded: Array[Byte]): Unit = {
    checkSize(encoded.length.toLong)
    valueBase = encoded
    valueOffset = Bytes.ArrayOffset
    valueLength = encoded.length
  }

  /** A fresh row from an encoded key as it lies in memory. */
  def decodeKey(address: Long, size: Int): UnsafeRow =
    decodeKey(FamilyCodec.copyOf(address, size), 0)

  /** The row of an encoded key that begins `at` bytes into an array which from now on is the row's own. */
  private def decodeKey(encoded: Array[Byte], at: Int): UnsafeRow =
    if (shape.keyLead == 1) FamilyCodec.row(encoded, at, keyFields)
    else keyEncoder.decodeKey(
      if (at == 0) encoded else java.util.Arrays.copyOfRange(encoded, at, encoded.length)).copy()

  /** The row of a physical key; the array is from now on the row's own. */
  def decodePhysical(key: Array[Byte]): UnsafeRow =
    decodeKey(
      if (shape.keyTrail == 0) key else java.util.Arrays.copyOf(key, key.length - shape.keyTrail),
      4 + shape.keyLead)

  /** A fresh row of a value as it lies in memory; of several values, the first. */
  def decodeValue(address: Long, size: Int): UnsafeRow =
    decodeValue(FamilyCodec.copyOf(address, size), 0)

  def decodeValue(encoded: Array[Byte], at: Int): UnsafeRow =
    if (shape.valueLead == 1) FamilyCodec.row(encoded, at, valueFields)
    else if (shape.multi) decodeValues(encoded, at).next()
    else valueEncoder.decodeValue(
      if (at == 0) encoded else java.util.Arrays.copyOfRange(encoded, at, encoded.length)).copy()

  /** All values of a key, each a fresh row. */
  def decodeValues(encoded: Array[Byte], at: Int): Iterator[UnsafeRow] = new Iterator[UnsafeRow] {
    private var position = at
    override def hasNext: Boolean = position < encoded.length
    override def next(): UnsafeRow = {
      val size = Platform.getInt(encoded, Bytes.ArrayOffset + position)
      val one = java.util.Arrays.copyOfRange(encoded, position + 4, position + 4 + size)
      position += 4 + size
      if (shape.plainRows) FamilyCodec.row(one, 1, valueFields)
      else valueEncoder.decodeValue(one).copy()
    }
  }
}

object FamilyCodec {
  private[millpond] def copyOf(address: Long, size: Int): Array[Byte] = {
    val copy = new Array[Byte](size)
    Bytes.copy(null, address, copy, Bytes.ArrayOffset, size)
    copy
  }

  private[millpond] def row(bytes: Array[Byte], at: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Bytes.ArrayOffset + at, bytes.length - at)
    row
  }

  /** Spark's prefix encoder leads with the length of the encoded prefix columns. */
  private[millpond] def prefixLength(base: AnyRef, offset: Long): Int =
    4 + Platform.getInt(base, offset)
}
