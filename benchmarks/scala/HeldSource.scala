// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.util
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.internal.connector.SimpleTableProvider
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** A source of rows that this process holds: a batch after the other, two tasks each.
  *
  * Spark's own memory source gives all that it has in one batch.
  */
final class HeldSource extends SimpleTableProvider {
  override def getTable(options: CaseInsensitiveStringMap): Table =
    new HeldTable(options.get("name"))
}

object HeldSource {
  private[bench] final case class Held(schema: StructType, batches: Vector[Array[InternalRow]])

  private val held = new ConcurrentHashMap[String, Held]

  /** Adds rows as the next batch of a name. */
  def hold(name: String, rows: DataFrame): Unit = {
    val batch = rows.queryExecution.toRdd.map(_.copy()).collect()
    held.merge(
      name,
      Held(rows.schema, Vector(batch)),
      (before, added) => before.copy(batches = before.batches ++ added.batches)
    ): Unit
  }

  private[bench] def of(name: String): Held = held.get(name)
}

private final class HeldTable(name: String) extends Table with SupportsRead {
  override def name(): String = s"held $name"
  override def columns(): Array[Column] =
    CatalogV2Util.structTypeToV2Columns(HeldSource.of(name).schema)
  override def capabilities(): util.Set[TableCapability] =
    util.EnumSet.of(TableCapability.MICRO_BATCH_READ)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () =>
    new Scan {
      override def readSchema(): StructType = HeldSource.of(name).schema
      override def toMicroBatchStream(checkpoint: String): MicroBatchStream = new HeldStream(name)
    }
}

/** How many batches are read. */
private final case class HeldOffset(read: Int) extends Offset {
  override def json(): String = read.toString
}

private final case class HeldPartition(name: String, batch: Int, from: Int, until: Int)
    extends InputPartition

private final class HeldStream(name: String)
    extends MicroBatchStream
    with SupportsTriggerAvailableNow {
  override def initialOffset(): Offset = HeldOffset(0)
  override def deserializeOffset(json: String): Offset = HeldOffset(json.toInt)
  override def prepareForTriggerAvailableNow(): Unit = ()
  override def latestOffset(): Offset =
    throw new UnsupportedOperationException("Spark asks with a limit")
  override def latestOffset(start: Offset, limit: ReadLimit): Offset =
    HeldOffset(math.min(read(start) + 1, HeldSource.of(name).batches.size))

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    (read(start) until read(end)).flatMap { batch =>
      val rows = HeldSource.of(name).batches(batch).length
      val half = rows / 2
      Seq(HeldPartition(name, batch, 0, half), HeldPartition(name, batch, half, rows))
    }.toArray

  override def createReaderFactory(): PartitionReaderFactory = HeldReaderFactory
  override def commit(end: Offset): Unit = ()
  override def stop(): Unit = ()

  private def read(offset: Offset): Int = offset match {
    case HeldOffset(read) => read
    case other => other.json().toInt
  }
}

private object HeldReaderFactory extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    partition match {
      case HeldPartition(name, batch, from, until) =>
        new HeldReader(HeldSource.of(name).batches(batch), from, until)
      case other => throw new IllegalArgumentException(other.toString)
    }
}

private final class HeldReader(rows: Array[InternalRow], from: Int, until: Int)
    extends PartitionReader[InternalRow] {
  private var at = from - 1
  override def next(): Boolean = {
    at += 1
    at < until
  }
  override def get(): InternalRow = rows(at)
  override def close(): Unit = ()
}
