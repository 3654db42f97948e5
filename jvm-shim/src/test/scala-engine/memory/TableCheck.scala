package org.apache.spark.sql.millpond.memory

import scala.collection.mutable

import org.apache.spark.sql.millpond.testing.Trial
import org.apache.spark.unsafe.Platform

/** Checks that the parts of a table agree. */
private object TableCheck {
  def apply(trial: Trial, table: Table): Unit = {
    import trial.{check, equal}
    val records = table.addresses()
    equal(table.slots.records, records.length, "the count of records")
    equal(table.presentCount, records.count(table.isPresent), "the count of present keys")
    records.foreach { r =>
      val found =
        table.find(null, table.keyAddress(r), table.keyLength(r), Platform.getInt(null, r))
      equal(found, r, "the record that a key leads to")
    }
    if (table.chains != null) chains(trial, table, records)
    if (table.isSorted) {
      val order = inOrder(table.index)
      equal(order.size, records.length, "the size of the index")
      equal(order.toSet, records.toSet, "the records of the index")
      order.zip(order.drop(1)).foreach { case (a, b) =>
        check(table.compareKey(a, null, table.keyAddress(b), table.keyLength(b)) < 0,
          "the index is out of order")
      }
    }
    memory(
      trial,
      table.arena,
      (records ++ olds(table.touched, 0) ++ olds(table.detached, 0) ++ olds(table.garbage,
        table.garbageAt) ++ all(table.parked))
        .map(r => r -> table.recordBytes(r))
    )
    if (table.chains != null)
      memory(trial, table.chains.heads.arena,
        table.chains.heads.addresses().map(r => r -> table.chains.heads.recordBytes(r)))
  }

  private def olds(list: TouchList, from: Int): Seq[Long] =
    if (list == null) Nil else (from until list.size).map(list.old).filter(_ != 0L)
  private def all(list: LongList): Seq[Long] = (0 until list.size).map(list(_))
  /** Returns all records of an index, without a view. */
  def inOrder(index: SortedIndex): Seq[Long] =
    (0 until index.leafCount).flatMap(i => index.leaves(i).addresses.take(index.leaves(i).count))

  private def chains(trial: Trial, table: Table, records: Array[Long]): Unit = {
    import trial.{check, equal}
    val seen = mutable.HashSet.empty[Long]
    val heads = table.chains.heads
    heads.addresses().foreach { head =>
      var before = 0L
      var r = Platform.getLong(null, heads.valueAddress(head))
      check(r != 0L, "a list is empty")
      while (r != 0L) {
        check(seen.add(r), "a record is in two lists")
        equal(Platform.getLong(null, r + PrefixChains.HeadAt), head, "the list of a record")
        equal(Platform.getLong(null, r + PrefixChains.PreviousAt), before, "the record before")
        check(Bytes.equal(null, table.keyAddress(r), null, heads.keyAddress(head),
            heads.keyLength(head)), "a record is in the list of another prefix")
        before = r
        r = Platform.getLong(null, r + PrefixChains.NextAt)
      }
    }
    equal(seen.toSet, records.toSet, "the records of all lists")
  }

  /** Checks that used and free records lie within the arena, and that none overlap. */
  def memory(trial: Trial, arena: Arena, used: Seq[(Long, Int)]): Unit = {
    val usedRuns = used.map { case (at, bytes) => at -> Arena.sizeOf(Arena.classOf(bytes)) }
    trial.equal(arena.liveBytes, usedRuns.map(_._2).sum, "the bytes of records")
    val freeRuns = arena.free.indices.flatMap(c =>
      Iterator.iterate(arena.free(c))(at => Platform.getLong(null, at)).takeWhile(_ != 0L).map(
        _ -> Arena.sizeOf(c)))
    val runs = (usedRuns ++ freeRuns).sorted
    runs.zip(runs.drop(1)).foreach { case ((a, bytes), (b, _)) =>
      trial.check(a + bytes <= b, "two records overlap")
    }
    val chunks = (0 until arena.chunkCount).map(i => arena.chunks(i) -> arena.chunkSizes(i)).sorted
    var i = 0
    runs.foreach { case (at, bytes) =>
      while (i < chunks.size && chunks(i)._1 + chunks(i)._2 <= at) i += 1
      trial.check(i < chunks.size && at >= chunks(i)._1 && at + bytes <= chunks(i)._1 + chunks(
          i)._2, "a record is outside of the arena")
    }
    trial.equal(arena.allocatedBytes, chunks.map(_._2).sum, "the bytes of the arena")
  }
}
