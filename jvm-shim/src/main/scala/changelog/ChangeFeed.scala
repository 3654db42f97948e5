package org.apache.spark.sql.millpond.changelog

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.RecordType
import org.apache.spark.sql.millpond.base.{MillpondError, Op}
import org.apache.spark.sql.millpond.rows.{FamilyCodec, FamilyShape}
import org.apache.spark.util.NextIterator

/** The changes of some versions in one column family, from their changelogs. Each put value,
  * delete or appended value is one record. The batch of version v is v - 1. The
  * changelog of a small batch holds its net change, so a key that was written more than once in it
  * appears as it ended. That of a large one may have a key again that changed again.
  *
  * @param codec knows the rows of the family; it is this iterator's own
  * @param usesCommitIds as for `PendingChangelog.check` */
private[millpond] final class ChangeFeed(changelogs: Seq[PendingChangelog], family: String,
    codec: FamilyCodec, usesCommitIds: Boolean)
    extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] with RecordSink {
  private val files = changelogs.iterator
  private var cursor: ChangelogCursor = null
  private var version = 0L
  private var familyId = -1
  // the records of the block that was read last: op, physical key, value
  private val block = scala.collection.mutable.ArrayDeque.empty[(Byte, Array[Byte], Array[Byte])]
  private var values: Iterator[UnsafeRow] = Iterator.empty
  private var valuesKey: UnsafeRow = null

  override protected def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    if (values.hasNext) (RecordType.MERGE_RECORD, valuesKey, values.next(), version - 1)
    else {
      while (block.isEmpty && advance()) ()
      if (block.isEmpty) { finished = true; null }
      else {
        val (op, encodedKey, value) = block.removeHead()
        val key = codec.decodePhysical(encodedKey)
        if (value == null) (RecordType.DELETE_RECORD, key, null, version - 1)
        else if (codec.shape.multi) {
          valuesKey = key
          values = codec.decodeValues(value, 0)
          // the first value of a list replaces what was there, the others follow it
          (if (op == Op.Put) RecordType.PUT_RECORD else RecordType.MERGE_RECORD, key, values.next(),
            version - 1)
        } else
          (RecordType.PUT_RECORD, key, codec.decodeValue(value, codec.shape.valueLead), version - 1)
      }
    }
  }

  /** Read one more block, or open the next file. False after the last file. */
  private def advance(): Boolean =
    if (cursor != null) {
      if (!cursor.next(this)) { cursor.close(); cursor = null }
      true
    } else if (files.hasNext) {
      val file = files.next()
      cursor = new ChangelogReader(file.path).cursor()
      check(file, cursor.header)
      version = file.version
      true
    } else false

  private def check(file: PendingChangelog, header: JsonNode): Unit = {
    PendingChangelog.check(file, header, usesCommitIds)
    val described =
      header.get("column_families").elements.asScala.find(_.get("name").asText == family)
    familyId = described.fold(-1)(_.get("id").asInt)
    described.map(FamilyShape.of).filter(_ != codec.shape).foreach { shape =>
      throw MillpondError.of("INVALID_ARGUMENT",
        s"column family '$family' is stored as $shape in ${file.path}, " +
          s"the query wants ${codec.shape}.")
    }
  }

  override def record(op: Byte, bytes: Array[Byte], keyAt: Int, keyLength: Int, valueAt: Int,
      valueLength: Int): Unit =
    if ((((bytes(keyAt + 2) & 0xFF) << 8) | (bytes(keyAt + 3) & 0xFF)) == familyId) {
      block.append((op, java.util.Arrays.copyOfRange(bytes, keyAt, keyAt + keyLength),
          if (op == Op.Delete) null
          else java.util.Arrays.copyOfRange(bytes, valueAt, valueAt + valueLength)))
    }

  override protected def close(): Unit = if (cursor != null) { cursor.close(); cursor = null }
}
