package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.millpond.base.TimeToLive
import org.apache.spark.sql.millpond.memory.Bytes
import org.apache.spark.sql.millpond.rows.{Age, Family}

/** How many rows one side of a join has by key. Another store has these counts. */
private[millpond] trait JoinCounts {
  /** 0: the key has no rows. */
  def of(key: UnsafeRow): Long
  /** @param rows 0: the key has no rows any more */
  def set(key: UnsafeRow, rows: Long): Unit
}

/** Ends rows of one side of a join as Spark's join removes them. The store has them by key and
  * index, and the indexes of a key are those below its count. So the last row of the key moves to
  * the index of the one that ends, and keeps its age.
  *
  * @param moved is told of each row that moved; it holds the engine's monitor */
private[engine] final class JoinEnd(engine: StoreEngine, session: Session, counts: JoinCounts,
    ttl: TimeToLive, moved: StoredRow => Unit) {
  private val row = new StoredRow(engine)
  private val last = new StoredRow(engine)
  private val (fields, withoutIndex) = engine.synchronized {
    engine.checkWritable(session)
    val schema = family.rows.keySchema
    (schema.length,
      UnsafeProjection.create(schema.init.zipWithIndex.map { case (column, i) =>
        BoundReference(i, column.dataType, column.nullable)
      }))
  }
  private var lastKey = new Array[Byte](64)
  private var left = 0L // rows of the key

  private def family: Family = engine.families.get(StateStore.DEFAULT_COL_FAMILY_NAME)

  /** End a row that is due. Callers do not hold the engine's monitor: the counts lie elsewhere.
    * @return how many rows of its key ended */
  def end(slot: Int, key: Array[Byte], length: Int): Long = {
    val indexed = new UnsafeRow(fields)
    indexed.pointTo(key, Bytes.ArrayOffset, length)
    val joinKey = withoutIndex(indexed)
    val index = indexed.getLong(fields - 1)
    if (lastKey.length < length) lastKey = new Array[Byte](2 * length)
    System.arraycopy(key, 0, lastKey, 0, length)
    val lastIndexed = new UnsafeRow(fields)
    lastIndexed.pointTo(lastKey, Bytes.ArrayOffset, length)
    var ended = 0L
    var more = true
    while (more) {
      val before = counts.of(joinKey)
      left = before
      engine.synchronized {
        engine.checkWritable(session)
        val f = family
        val until = ended + JoinEnd.Together
        // the last row may be due as well, and must not move then
        var moves = false
        while (left - 1 > index && !moves && ended < until) {
          lastIndexed.setLong(fields - 1, left - 1)
          if (!last.find(f, slot, lastKey, length)) left -= 1 // Spark's join skips it, too
          else if (last.isDue(ttl)) {
            last.remove()
            left -= 1
            ended += 1
          } else moves = true
        }
        more = ended >= until
        if (!more && row.find(f, slot, key, length)) {
          if (moves && last.find(f, slot, lastKey, length)) {
            row.writeAged(last, if (last.age == Age.Unknown) ttl.stamp else last.age)
            moved(row)
            // the write may have moved what memory has
            if (last.find(f, slot, lastKey, length)) last.remove()
          } else row.remove()
          if (index < left) left -= 1 // otherwise no index led to it
          ended += 1
        }
      }
      if (left != before) counts.set(joinKey, left)
    }
    ended
  }
}

private object JoinEnd {
  private val Together = 256 // rows under one lock
}
