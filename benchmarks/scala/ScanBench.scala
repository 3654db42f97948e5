// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.nio.ByteBuffer
import java.nio.file.{Files, Path, Paths}
import java.util.{LinkedHashMap => JavaMap, SplittableRandom}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.{
  BlockBasedTableConfig, BloomFilter, CompressionType, LRUCache, Options, ReadOptions, RocksDB,
  WriteBatch, WriteOptions
}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.execution.streaming.state.{
  KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, PrefixKeyScanStateEncoderSpec,
  RangeKeyScanStateEncoderSpec, StateStore
}

/**
 * Scans of every kind over stores that were loaded, saved and restored. So no store has its rows
 * only where it wrote them.
 *
 * `spec` has what StoreBench takes, and besides: `keys`, `prefix_scans` (prefixes of ten rows),
 * `evictions` (batches that remove the oldest `eviction_rows`), `settle_ms` (time for what a store
 * does after a restore), `raw` (measure RocksDB itself too, on the same rows).
 */
private final class ScanRun(spark: ClassicSession, spec: JsonNode) {
  private val PerPrefix = 10
  private def int(name: String): Int = spec.get(name).asInt
  private val keys = spec.get("keys").asLong
  private val random = new SplittableRandom(spec.get("seed").asLong)
  private val stores = new Stores(spark, Paths.get(spec.get("checkpoint").asText))
  private val result = new JavaMap[String, Any]

  def measure(): java.util.Map[String, Any] = {
    warmUp()
    val point = restored(operator = 0, NoPrefixKeyStateEncoderSpec(Rows.keySchema), keys, mixed)
    result.put("scan_us_per_row",
      box((1 to int("scans")).map(_ => Workload.scan(point, keys) * 1000.0 / keys)))
    point.close()

    val prefix =
      restored(operator = 1, PrefixKeyScanStateEncoderSpec(Rows.keySchema, 1), keys, ofPrefix)
    result.put("prefix_scan_us",
      box((1 to int("scans")).map(_ => prefixScans(prefix, keys, int("prefix_scans")))))
    prefix.close()

    val ordered = RangeKeyScanStateEncoderSpec(Rows.keySchema, Seq(0))
    val range = restored(operator = 2, ordered, keys, positive)
    result.put("ordered_scan_us_per_row",
      box((1 to int("scans")).map(_ => inOrder(range) * 1000.0 / keys)))
    result.put("eviction_ms", box(evictions(range, keys)))
    range.close()

    val tenth = restored(operator = 3, ordered, keys / 10, positive)
    result.put("eviction_of_a_tenth_ms", box(evictions(tenth, keys / 10)))
    tenth.close()

    if (spec.get("raw").asBoolean) Raw.measure(
      Paths.get(spec.get("local_dir").asText).resolve("raw"), keys, PerPrefix, int("scans"),
      int("prefix_scans"), random.split()).foreach { case (name, values) =>
      result.put(name, box(values))
    }
    result.put("keys", keys)
    result
  }

  private def warmUp(): Unit = {
    val some = int("warmup_keys").toLong
    val point = restored(operator = 4, NoPrefixKeyStateEncoderSpec(Rows.keySchema), some, mixed)
    (1 to 3).foreach(_ => Workload.scan(point, some))
    point.close()
    val prefix =
      restored(operator = 5, PrefixKeyScanStateEncoderSpec(Rows.keySchema, 1), some, ofPrefix)
    (1 to 3).foreach(_ => prefixScans(prefix, some, int("prefix_scans")))
    prefix.close()
    val range =
      restored(operator = 6, RangeKeyScanStateEncoderSpec(Rows.keySchema, Seq(0)), some, positive)
    (1 to 3).foreach(_ => inOrder(range))
    evictions(range, some): Unit
    range.close()
  }

  private val mixed: (UnsafeRow, Long) => UnsafeRow = Rows.keyAt
  /** The store wrote the rows of one prefix at times that are far apart. */
  private val ofPrefix: (UnsafeRow, Long) => UnsafeRow =
    (row, i) => { row.setLong(0, Rows.mix(i / PerPrefix)); row.setLong(1, i); row }
  private val positive: (UnsafeRow, Long) => UnsafeRow =
    (row, i) => { row.setLong(0, Rows.mix(i) >>> 1); row.setLong(1, i); row }

  private def restored(operator: Long, encoder: KeyStateEncoderSpec, rows: Long,
      keyAt: (UnsafeRow, Long) => UnsafeRow): Handle = {
    val handle = stores.handle(operator, encoder)
    handle.open()
    val (key, value) = (Rows.key(), Rows.value())
    val perBatch = int("load_batch").toLong
    var next = 0L
    while (next < rows) {
      val store = handle.provider.getStore(handle.version, None, next + perBatch >= rows, false)
      val end = math.min(rows, next + perBatch)
      while (next < end) {
        store.put(keyAt(key, next), Rows.valueOf(value, 1L, next), "default"); next += 1
      }
      handle.version = store.commit()
      require(store.getStateStoreCheckpointInfo().batchVersion == handle.version)
    }
    handle.expectedSum = rows
    handle.snapshot()
    handle.close()
    handle.open()
    Workload.scan(handle, rows): Unit
    if (rows >= keys / 10) Thread.sleep(spec.get("settle_ms").asLong)
    handle
  }

  /** Mean microseconds of a scan of one random prefix. It reads all rows of the prefix. */
  private def prefixScans(handle: Handle, rows: Long, scans: Int): Double = {
    val prefixes = Array.fill(scans)(Rows.mix(random.nextLong(rows / PerPrefix)))
    val key = new UnsafeRow(1)
    key.pointTo(new Array[Byte](16), 16)
    inBatch(handle) { store =>
      Clock.ms(prefixes.foreach { prefix =>
        key.setLong(0, prefix)
        val found = store.prefixScan(key, "default")
        var count = 0
        while (found.hasNext) { require(found.next().key.getLong(0) == prefix); count += 1 }
        found.close()
        require(count == PerPrefix, s"a prefix scan found $count rows")
      }) * 1000.0 / scans
    }
  }

  /** Milliseconds of a scan of all rows by their first column. */
  private def inOrder(handle: Handle): Double = inBatch(handle) { store =>
    Clock.ms {
      val rows = store.iterator("default")
      var (last, count) = (Long.MinValue, 0L)
      while (rows.hasNext) {
        val at = rows.next().key.getLong(0); require(at >= last, "not in order"); last = at;
        count += 1
      }
      rows.close()
      require(count == handle.expectedSum, s"$count rows instead of ${handle.expectedSum}")
    }
  }

  /**
   * Milliseconds of each micro-batch that removes the oldest rows, without its commit. Evictions of
   * timers and of TTL remove rows so.
   */
  private def evictions(handle: Handle, rows: Long): Seq[Double] = {
    val step = (Long.MaxValue.toDouble / rows * int("eviction_rows")).toLong
    (1 to int("evictions")).map { turn =>
      val store = handle.provider.getStore(handle.version, None, false, false)
      var removed = 0L
      val ms = Clock.ms {
        val found = store.iterator("default")
        var more = true
        while (more && found.hasNext) {
          val key = found.next().key
          if (key.getLong(0) < step * turn) { store.remove(key.copy(), "default"); removed += 1 }
          else more = false
        }
        found.close()
      }
      handle.version = store.commit()
      require(store.getStateStoreCheckpointInfo().batchVersion == handle.version)
      require(removed > 0, "nothing was old")
      handle.expectedSum -= removed
      ms
    }
  }

  private def inBatch[T](handle: Handle)(body: StateStore => T): T = {
    val store = handle.provider.getStore(handle.version, None, false, false)
    try body(store)
    finally store.abort()
  }

  private def box(values: Iterable[Double]): java.util.List[Double] = values.toSeq.asJava
}

/**
 * RocksDB without a state store above it. Rows have the same size as in Millpond's disk tier. Block
 * size and compression are the same too.
 */
private object Raw {
  // The rows are as long as in Millpond's disk tier: slot, family, then the encoded row.
  private val KeyBytes = 4 + 25 // version byte, null bits, two longs
  // Length of the prefix row; its null bits and long; those of the rest.
  private val PrefixedKeyBytes = 4 + 4 + 16 + 16
  private val ValueBytes = 25

  def measure(dir: Path, keys: Long, perPrefix: Int, scans: Int, prefixScans: Int,
      random: SplittableRandom): Seq[(String, Seq[Double])] = {
    val table = new BlockBasedTableConfig().setBlockSize(8L << 10).setBlockCache(
      new LRUCache(32L << 20)).setFilterPolicy(new BloomFilter(10))
    val options = new Options().setCreateIfMissing(true).setCompressionType(
      CompressionType.LZ4_COMPRESSION).setTableFormatConfig(table)
    def of(name: String, keyBytes: Int)(measure: RocksDB => Double): Seq[Double] = {
      val db = RocksDB.open(options, Files.createDirectories(dir.resolve(name)).toString)
      try {
        load(db, keys, perPrefix, keyBytes)
        (1 to scans + 1).map(_ => measure(db)).tail
      } finally db.close()
    }
    try Seq(
        "raw_scan_us_per_row" -> of("point", KeyBytes)(scan(_, keys) * 1000.0 / keys),
        "raw_prefix_scan_us" -> of("prefix", PrefixedKeyBytes)(ofPrefixes(_, keys, perPrefix,
            prefixScans, random))
      )
    finally options.close()
  }

  private def load(db: RocksDB, keys: Long, perPrefix: Int, keyBytes: Int): Unit = {
    val options = new WriteOptions().setDisableWAL(true)
    val (key, value) = (ByteBuffer.allocate(keyBytes), ByteBuffer.allocate(ValueBytes))
    var batch = new WriteBatch()
    var i = 0L
    while (i < keys) {
      key.putLong(0, Rows.mix(i / perPrefix)).putLong(8, i)
      value.putLong(0, 1L).putLong(8, i)
      batch.put(key.array, value.array)
      i += 1
      if (i % 10000 == 0 || i == keys) {
        db.write(options, batch); batch.close(); batch = new WriteBatch()
      }
    }
    batch.close()
    options.close()
    db.compactRange()
  }

  private def scan(db: RocksDB, keys: Long): Double = Clock.ms {
    val reading = new ReadOptions().setFillCache(false).setReadaheadSize(2L << 20)
    val rows = db.newIterator(reading)
    val (key, value) = (ByteBuffer.allocateDirect(64), ByteBuffer.allocateDirect(64))
    var (count, sum) = (0L, 0L)
    rows.seekToFirst()
    while (rows.isValid) {
      key.clear(): Unit
      value.clear(): Unit
      rows.key(key)
      rows.value(value)
      sum += value.getLong(0)
      count += 1
      rows.next()
    }
    rows.close()
    reading.close()
    require(count == keys && sum == keys)
  }

  private def ofPrefixes(db: RocksDB, keys: Long, perPrefix: Int, scans: Int,
      random: SplittableRandom): Double = {
    val prefixes = Array.fill(scans)(Rows.mix(random.nextLong(keys / perPrefix)))
    val (key, value) = (ByteBuffer.allocateDirect(64), ByteBuffer.allocateDirect(64))
    val from = ByteBuffer.allocate(8)
    Clock.ms(prefixes.foreach { prefix =>
      val rows = db.newIterator()
      from.putLong(0, prefix)
      rows.seek(from.array)
      var (count, more) = (0, true)
      while (more && rows.isValid) {
        key.clear(): Unit
        rows.key(key)
        if (key.getLong(0) == prefix) {
          value.clear(): Unit; rows.value(value); count += 1; rows.next()
        } else more = false
      }
      rows.close()
      require(count == perPrefix)
    }) * 1000.0 / scans
  }
}
