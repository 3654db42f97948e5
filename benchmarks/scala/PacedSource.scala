// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.util

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead.RecordStatus
import org.apache.spark.sql.internal.connector.SimpleTableProvider
import org.apache.spark.sql.types.{LongType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** A source for real-time mode that keeps nothing: records are computed when they are due.
  *
  * Rows are `key` and `at`, the time in microseconds at which the record was due. Spark's own
  * memory source keeps each record in a list, and looks for new ones every 10 ms.
  */
final class PacedSource extends SimpleTableProvider {
  override def getTable(options: CaseInsensitiveStringMap): Table =
    new PacedTable(Plan.of(options.get("plan")))
}

private final class PacedTable(plan: Plan) extends Table with SupportsRead {
  override def name(): String = "paced"
  override def columns(): Array[Column] =
    Array(Column.create("key", LongType, false), Column.create("at", LongType, false))
  override def capabilities(): util.Set[TableCapability] =
    util.EnumSet.of(TableCapability.MICRO_BATCH_READ)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () =>
    new Scan {
      override def readSchema(): StructType = CatalogV2Util.v2ColumnsToStructType(columns())
      override def toMicroBatchStream(checkpoint: String): MicroBatchStream = new PacedStream(plan)
    }
}

/** How many records of each partition are read. */
private final case class PacedOffset(read: Seq[Long]) extends Offset {
  override def json(): String = read.mkString("[", ",", "]")
}

private final case class PacedPartitionOffset(partition: Int, read: Long) extends PartitionOffset

/** @param loads how many records of the state were read when the batch has all of its own */
private final case class PacedPartition(plan: Plan, partition: Int, from: Long, loads: Long)
    extends InputPartition

private final class PacedStream(plan: Plan) extends MicroBatchStream with SupportsRealTimeMode {
  override def initialOffset(): Offset = PacedOffset(Seq.fill(plan.partitions)(0L))

  /** Spark asks, and real-time mode has no use for it. */
  override def latestOffset(): Offset = initialOffset()

  override def deserializeOffset(json: String): Offset =
    PacedOffset(json.drop(1).dropRight(1).split(',').toSeq.map(_.trim.toLong))

  /** The schedule begins with the first batch that finds the state filled. */
  override def planInputPartitions(start: Offset): Array[InputPartition] = {
    val PacedOffset(read) = offset(start)
    if (read.zipWithIndex.forall { case (n, i) => n >= plan.loaded(i) }) Latencies.begin(plan)
    read.zipWithIndex.map { case (n, i) =>
      val loads = if (n == 0) plan.first(i) else plan.loaded(i)
      PacedPartition(plan, i, n, loads): InputPartition
    }.toArray
  }

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    throw new UnsupportedOperationException("the paced source is for real-time mode")

  override def mergeOffsets(offsets: Array[PartitionOffset]): Offset = PacedOffset(
    offsets.toSeq.collect { case o: PacedPartitionOffset => o }.sortBy(_.partition).map(_.read)
  )

  override def createReaderFactory(): PartitionReaderFactory = PacedReaderFactory
  override def commit(end: Offset): Unit = ()
  override def stop(): Unit = ()

  private def offset(of: Offset): PacedOffset = of match {
    case paced: PacedOffset => paced
    case other => deserializeOffset(other.json()).asInstanceOf[PacedOffset]
  }
}

private object PacedReaderFactory extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    partition match {
      case PacedPartition(plan, i, from, loads) => new PacedReader(plan, i, from, loads)
      case other => throw new IllegalArgumentException(other.toString)
    }
}

private final class PacedReader(plan: Plan, partition: Int, from: Long, loads: Long)
    extends SupportsRealTimeRead[InternalRow] {
  private val writer = new UnsafeRowWriter(2)
  private val loaded = plan.loaded(partition)
  private var read = from

  override def nextWithTimeout(
      startMs: java.lang.Long,
      timeoutMs: java.lang.Long
  ): RecordStatus = {
    val endUs = WallClock.nowUs() + timeoutMs * 1000
    if (read < loads) {
      emit(plan.number(partition, read), 0)
      RecordStatus.newStatusWithoutArrivalTime(true)
    } else {
      val number = plan.number(partition, read - loaded)
      val dueUs = Latencies.begunUs.map(_ + plan.dueUs(number))
      dueUs.filter(_ < endUs && number < plan.paced) match {
        case Some(us) =>
          WallClock.waitUntil(us)
          emit(plan.key(number), us)
          RecordStatus.newStatusWithArrivalTimeMs(us / 1000)
        case None =>
          WallClock.waitUntil(endUs)
          RecordStatus.newStatusWithoutArrivalTime(false)
      }
    }
  }

  private def emit(key: Long, atUs: Long): Unit = {
    writer.reset()
    writer.zeroOutNullBytes()
    writer.write(0, key)
    writer.write(1, atUs)
    read += 1
  }

  override def get(): InternalRow = writer.getRow
  override def getOffset(): PartitionOffset = PacedPartitionOffset(partition, read)
  override def next(): Boolean =
    throw new UnsupportedOperationException("the paced source is for real-time mode")
  override def close(): Unit = ()
}
