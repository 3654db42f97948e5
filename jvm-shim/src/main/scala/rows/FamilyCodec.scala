package org.apache.spark.sql.millpond.rows

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  AvroStateEncoder, KeyStateEncoderSpec, RocksDBDataEncoder, RocksDBStateEncoder,
  RocksDBValueStateEncoder, StateSchemaProvider, UnsafeRowDataEncoder
}
import org.apache.spark.sql.millpond.base.RowLimit
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** Encodes and decodes the rows of one column family, as an operator registered it. The encoded
  * key of the last call lies in `base`, `offset`, `length`, the encoded value in `valueBase`,
  * `valueOffset`, `valueLength`; if rows get an age, the value's last bytes are that `age`, and do
  * not lie there. */
final class FamilyCodec(val shape: FamilyShape, val keySchema: StructType,
    val valueSchema: StructType, spec: KeyStateEncoderSpec, useColumnFamilies: Boolean,
    schemas: Option[StateSchemaProvider], familyName: String, val partitionKey: PartitionKey) {
  /** Whether rows of this definition can be encoded and decoded here. */
  def isFor(d: FamilyDefinition): Boolean = d.valueSchema == valueSchema && d.spec == spec

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
      base = row.getBaseObject
      offset = row.getBaseOffset
      length = row.getSizeInBytes
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
    base = encoded
    offset = Bytes.ArrayOffset
    length = encoded.length
    checkSize(0L)
  }

  /** Refuse a row that is too large: the key of the last call with a value of so many bytes. */
  def checkSize(valueBytes: Long): Unit = if (length + valueBytes > RowLimit.MostBytes)
    throw RowLimit.exceeded(familyName, length + valueBytes)

  private var stamp = Age.Unknown

  /** The age that values get from now on; `Unknown`: none. Only for families of plain rows. */
  def stampWith(stamp: Long): Unit = this.stamp = stamp
  def age: Long = stamp
  def isStamping: Boolean = stamp != Age.Unknown

  def encodeValue(row: UnsafeRow): Unit =
    if (shape.valueLead == 1) {
      valueBase = row.getBaseObject
      valueOffset = row.getBaseOffset
      valueLength = row.getSizeInBytes
      if (isStamping) valueLength = Math.addExact(valueLength, Age.Size)
      checkSize(valueLength.toLong)
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

  /** The row of an encoded key that begins `at` bytes into an array. The row
    * takes over the array. */
  private def decodeKey(encoded: Array[Byte], at: Int): UnsafeRow =
    if (shape.keyLead == 1) FamilyCodec.row(encoded, at, keyFields)
    else
      keyEncoder.decodeKey(
        if (at == 0) encoded else java.util.Arrays.copyOfRange(encoded, at, encoded.length)).copy()

  /** The row of a physical key. The row takes over the array. */
  def decodePhysical(key: Array[Byte]): UnsafeRow =
    decodeKey(
      if (shape.keyTrail == 0) key else java.util.Arrays.copyOf(key, key.length - shape.keyTrail),
      4 + shape.keyLead)

  /** A fresh row of a value as it lies in memory; of several values, the first. */
  def decodeValue(address: Long, size: Int): UnsafeRow =
    decodeValue(FamilyCodec.copyOf(address,
        if (shape.valueLead == 1) Age.rowBytes(size) else size), 0)

  def decodeValue(encoded: Array[Byte], at: Int): UnsafeRow =
    if (shape.valueLead == 1) FamilyCodec.valueRow(encoded, at, valueFields)
    else if (shape.multi) decodeValues(encoded, at).next()
    else
      valueEncoder.decodeValue(
        if (at == 0) encoded else java.util.Arrays.copyOfRange(encoded, at, encoded.length)).copy()

  /** All values of a key, each a fresh row. Whoever keeps the iterator beyond the last one does not
    * keep the values. */
  def decodeValues(encoded: Array[Byte], at: Int): Iterator[UnsafeRow] = new Iterator[UnsafeRow] {
    private var values = encoded
    private var position = at
    override def hasNext: Boolean = values != null && position < values.length
    override def next(): UnsafeRow = {
      if (!hasNext) throw new NoSuchElementException("end of the values of a key")
      val size = Platform.getInt(values, Bytes.ArrayOffset + position)
      val one = java.util.Arrays.copyOfRange(values, position + 4, position + 4 + size)
      position += 4 + size
      if (position >= values.length) values = null
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

  /** The row of a value, which may have an age behind it. */
  private[rows] def valueRow(bytes: Array[Byte], at: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Bytes.ArrayOffset + at, Age.rowBytes(bytes.length - at))
    row
  }

  private[rows] def row(bytes: Array[Byte], at: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Bytes.ArrayOffset + at, bytes.length - at)
    row
  }

  /** Spark's prefix encoder leads with the length of the encoded prefix columns. */
  private[rows] def prefixLength(base: AnyRef, offset: Long): Int =
    4 + Platform.getInt(base, offset)
}
