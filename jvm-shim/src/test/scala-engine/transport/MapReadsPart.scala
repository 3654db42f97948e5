package org.apache.spark.sql.millpond.transport

import org.apache.spark.sql.Row
import org.apache.spark.sql.execution.python.streaming.MapStateInfo
import org.apache.spark.sql.millpond.base.LimitedReads
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.sql.streaming.MapState
import org.apache.spark.sql.types.{LongType, StructType}

/** Maps that go along with the rows of their key. The scan of one that is too large for that is
  * ended: nobody else would before the end of the batch. */
object MapReadsPart extends Part {
  override val name = "map-reads"
  private val schema = new StructType().add("n", LongType)

  override def run(trial: Trial): Unit = {
    import trial.random
    val entries = random.nextInt(20)
    val limits = Limits(random.nextInt(20), random.between(1, 400))
    val map = new Entries(entries)
    val reads = new Counting
    val out = new PickleOut
    new BulkMap(MapStateInfo(map, schema, schema, null, null, null, null), reads)
      .read(out, limits)
    trial.step(s"$entries entries in ${out.size} bytes within $limits")
    trial.equal(reads.ended, if (map.isAtEnd) 0 else 1, "how often the scan is ended")
    if (out.size == 1) trial.check(!map.isAtEnd, "all was read, and nothing goes along")
    else trial.check(map.isAtEnd && entries <= limits.entries, "a part of the map goes along")
  }

  private final class Counting extends LimitedReads {
    var ended = 0
    override def endPrefixScan(): Unit = ended += 1
    override def ofShortList[A](mostValues: Int, mostBytes: Int)(read: => A): Option[A] = unasked()
    override def marked[A](read: => A): A = read
    override def endMarked(): Unit = ()
  }

  private final class Entries(count: Int) extends MapState[Row, Row] {
    private val rows = Iterator.range(0, count).map(n => Row(n.toLong) -> Row(n.toLong))
    def isAtEnd: Boolean = !rows.hasNext
    override def iterator(): Iterator[(Row, Row)] = rows
    override def exists(): Boolean = unasked()
    override def getValue(key: Row): Row = unasked()
    override def containsKey(key: Row): Boolean = unasked()
    override def updateValue(key: Row, value: Row): Unit = unasked()
    override def keys(): Iterator[Row] = unasked()
    override def values(): Iterator[Row] = unasked()
    override def removeKey(key: Row): Unit = unasked()
    override def clear(): Unit = unasked()
  }
  private def unasked(): Nothing = throw new UnsupportedOperationException
}
