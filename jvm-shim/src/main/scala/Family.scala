package org.apache.spark.sql.millpond

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, PrefixKeyScanStateEncoderSpec, RocksDBStateEncoder,
  StateStoreErrors, UnsafeRowDataEncoder}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** How the keys of a column family are encoded; names are durable. */
object FamilyKind {
  val Point = "point"
  val Prefix = "prefix"

  def of(spec: KeyStateEncoderSpec): String = spec match {
    case _: NoPrefixKeyStateEncoderSpec => Point
    case _: PrefixKeyScanStateEncoderSpec => Prefix
    case other => throw StateStoreErrors.unsupportedOperationException(other.getClass.getSimpleName, MillpondStateStoreProvider.Name)
  }
}

/** The rows of one column family: their memory tier, and how Spark's rows become bytes. In memory, keys and values of rows are kept without the
  * version byte that leads them on disk. Not thread-safe. */
final class Family(val name: String, val id: Int, val kind: String, val internal: Boolean, budget: MemoryBudget) {
  var table = new Table(budget, chained = kind == FamilyKind.Prefix)
  private var codec: FamilyCodec = null

  /** Bytes that lead every key on disk but not in memory. */
  val keyLead: Int = if (kind == FamilyKind.Point) 1 else 0

  def isRegistered: Boolean = codec != null
  def register(newCodec: FamilyCodec): Unit = codec = newCodec
  def rows: FamilyCodec = codec

  /** Length of the scan prefix within an encoded key (kind prefix only). */
  def prefixLength(base: AnyRef, offset: Long): Int = if (kind == FamilyKind.Prefix) FamilyCodec.prefixLength(base, offset) else 0

  def close(): Unit = table.close()
}

/** Rows to bytes and back, for one column family as an operator registered it. The encoded key or value of the last call lies in
  * `base`, `offset`, `length`. */
final class FamilyCodec(val kind: String, val keySchema: StructType, val valueSchema: StructType, spec: KeyStateEncoderSpec, useColumnFamilies: Boolean,
    val partitionKey: PartitionKey) {
  private val spark = if (kind == FamilyKind.Point) null else RocksDBStateEncoder.getKeyEncoder(new UnsafeRowDataEncoder(spec, valueSchema), spec, useColumnFamilies)
  private val keyFields = spec.keySchema.length
  private val valueFields = valueSchema.length

  var base: AnyRef = null
  var offset = 0L
  var length = 0

  def encodeKey(row: UnsafeRow): Unit =
    if (kind == FamilyKind.Point) { base = row.getBaseObject; offset = row.getBaseOffset; length = row.getSizeInBytes }
    else bytes(spark.encodeKey(row))

  def encodePrefix(row: UnsafeRow): Unit = bytes(spark.encodePrefixKey(row))

  private def bytes(encoded: Array[Byte]): Unit = { base = encoded; offset = Bytes.ArrayOffset; length = encoded.length }

  /** A fresh row from an encoded key as it lies in memory. */
  def decodeKey(address: Long, size: Int): UnsafeRow = {
    val copy = new Array[Byte](size)
    Bytes.copy(null, address, copy, Bytes.ArrayOffset, size)
    decodeKey(copy, 0)
  }

  /** The row of an encoded key that begins `at` bytes into an array which from now on is the row's own. */
  def decodeKey(encoded: Array[Byte], at: Int): UnsafeRow =
    if (kind == FamilyKind.Point) FamilyCodec.row(encoded, at, keyFields)
    else spark.decodeKey(if (at == 0) encoded else java.util.Arrays.copyOfRange(encoded, at, encoded.length)).copy()

  def decodeValue(address: Long, size: Int): UnsafeRow = {
    val copy = new Array[Byte](size)
    Bytes.copy(null, address, copy, Bytes.ArrayOffset, size)
    FamilyCodec.row(copy, 0, valueFields)
  }

  def decodeValue(encoded: Array[Byte], at: Int): UnsafeRow = FamilyCodec.row(encoded, at, valueFields)
}

object FamilyCodec {
  private[millpond] def row(bytes: Array[Byte], at: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Bytes.ArrayOffset + at, bytes.length - at)
    row
  }

  /** Spark's prefix encoder leads with the length of the encoded prefix columns. */
  private[millpond] def prefixLength(base: AnyRef, offset: Long): Int = 4 + Platform.getInt(base, offset)
}
