package org.apache.spark.sql.millpond.memory

import scala.collection.immutable.TreeMap
import scala.collection.mutable

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.unsafe.Platform

/** An arena with records of any size. Each record is filled with its own byte. */
object ArenaPart extends Part {
  override val name = "arena"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)

  override def run(trial: Trial): Unit = {
    import trial.{chance, random}
    sizes(trial)
    val budget = new MemoryBudget(1L << random.between(16, 26))
    val arena = new Arena(budget)
    val records = mutable.ArrayBuffer.empty[(Long, Int, Byte)]
    try (1 to 200).foreach { n =>
        if (chance(60) || records.isEmpty) {
          val bytes = if (chance(3)) random.nextInt(300000)
          else if (chance(20)) random.nextInt(5000)
          else random.nextInt(200)
          val before = (arena.liveBytes, arena.allocatedBytes)
          try {
            trial.step(s"allocate $bytes")
            val at = arena.allocate(bytes)
            trial.equal(at % 8, 0L, "the alignment of a record")
            Platform.setMemory(null, at, bytes.toLong, n.toByte)
            records += ((at, bytes, n.toByte))
          } catch {
            case _: MillpondException if trial.hasFailed =>
              trial.equal((arena.liveBytes, arena.allocatedBytes), before,
                "the memory in use after a failure")
          }
        } else {
          val (at, bytes, fill) = records.remove(random.nextInt(records.size))
          trial.step(s"release $bytes")
          (0 until bytes).foreach(i =>
            trial.check(Platform.getByte(null, at + i) == fill, "a record was overwritten"))
          trial.sheltered("release")(arena.release(at, bytes))
        }
        if (n % 8 == 0) TableCheck.memory(trial, arena, records.toSeq.map(r => r._1 -> r._2))
        trial.equal(budget.usedBytes, arena.allocatedBytes, "what the budget says")
      }
    finally arena.close()
    trial.equal(budget.usedBytes, 0L, "memory after the end")
  }

  private def sizes(trial: Trial): Unit = {
    val bytes =
      if (trial.chance(50)) trial.random.nextInt(5000) else trial.random.nextInt(Int.MaxValue)
    val of = Arena.classOf(bytes)
    trial.check(Arena.sizeOf(of) >= bytes,
      s"the size of the class of $bytes bytes is ${Arena.sizeOf(of)}")
    trial.check(Arena.sizeOf(of) <= 8L + bytes + bytes / 8,
      s"$bytes bytes take ${Arena.sizeOf(of)}")
    trial.check(of == 0 || Arena.sizeOf(of - 1) < bytes || of == 1,
      s"$bytes bytes would fit into a smaller class")
  }
}

/** The shares of stores that come, hold more or less, and go. */
object SharesPart extends Part {
  override val name = "shares"

  override def run(trial: Trial): Unit = {
    import trial.{chance, check, equal, random}
    crowd(trial)
    val limits = 1L << random.between(10, 40)
    val budget = new MemoryBudget(limits)
    var held = Map.empty[budget.Share, Long]
    def size(): Long =
      if (chance(20)) 0L else (budget.limitBytes * math.pow(random.nextDouble(), 4)).toLong
    def become(share: budget.Share, bytes: Long): Unit = {
      budget.add(bytes - held.getOrElse(share, 0L))
      share.begin(bytes)
      held += share -> bytes
    }
    (1 to 200).foreach { _ =>
      if (held.isEmpty || chance(20)) {
        trial.step("a store comes")
        val share = new budget.Share
        share.begin(size()) // it has no part yet
        (1 to random.between(1, 3)).foreach(_ => share.take(true))
        held += share -> 0L
      } else if (chance(10)) {
        trial.step("a store goes")
        val (share, bytes) = held.toSeq(random.nextInt(held.size))
        (1 to random.between(1, 3)).foreach(_ => share.take(false))
        budget.add(-bytes)
        held -= share
      } else if (chance(5))
        budget.limitTo(math.max(1L, random.between(limits / 4, limits * 2))): Unit
      else {
        val bytes = size()
        trial.step(s"a store holds $bytes")
        become(held.keys.toSeq(random.nextInt(held.size)), bytes)
      }
      equal(budget.storeCount, held.size, "the stores")
      val limit = budget.limitBytes
      val all = held.values.toSeq
      val least = limit / math.max(1, held.size)
      held.headOption.foreach { case (share, bytes) =>
        val (grown, rest) = (size(), all.sum - bytes)
        budget.add(grown) // by a batch that runs
        val most = share.bytes(bytes + grown)
        check(most >= least, s"a share of $most is less than an equal one, $least")
        check(most <= math.max(least, math.max(bytes, limit - rest)),
          s"a share of $most for one that held $bytes, beside $rest")
        val (running, ended) = (share.ofBatch(bytes + grown), share.afterBatch(bytes + grown))
        equal(running, math.max(most, math.min(1L << 20, limit / 4)), "what a batch may keep")
        val isCrowded = bytes + grown + rest > 2 * limit
        equal(ended, if (isCrowded) math.max(most, math.min(1L << 14, limit / 4)) else running,
          s"what a batch may leave of ${bytes + grown} beside $rest")
        budget.add(-grown)
        share.begin(bytes)
      }
      val soon = held.map { case (share, bytes) => share.beforeExceeded(bytes) - bytes }.toSeq
      check(soon.forall(_ >= 0) && soon.sum <= math.max(0L, limit - all.sum),
        s"all stores may grow by ${soon.sum}")
      if (all.sum > limit) {
        val level = held.maxBy(_._2) match { case (share, bytes) => share.bytes(bytes) }
        val exact = waterLevel(limit, all)
        check(level <= exact && level >= least, s"the level is $level instead of $exact")
        // what has four fifths of it or more may count as if it had all
        val (small, large) = all.partition(_ < level * 4 / 5)
        check(level >= (limit - small.sum) / math.max(1, large.size) - 1,
          s"the level $level leaves room that small stores do not take")
      }
    }
  }

  /** Many stores run batches in turn. All together they hold little more than is planned for, also
    * while none of them shrinks. */
  private def crowd(trial: Trial): Unit = {
    import trial.{chance, check, random}
    val limit = 1L << random.between(21, 30)
    val budget = new MemoryBudget(limit)
    val shares = Vector.fill(random.between(1, 400)) {
      val share = new budget.Share
      share.take(true)
      share
    }
    val held = Array.fill(shares.size)(0L)
    def become(n: Int, bytes: Long): Unit = { budget.add(bytes - held(n)); held(n) = bytes }
    trial.step(s"a crowd of ${shares.size} stores with $limit bytes")
    (1 to 3).foreach { _ =>
      random.shuffle(shares.indices.toVector).foreach { n =>
        val share = shares(n)
        share.begin(held(n))
        if (budget.isExceeded && chance(80)) become(n, math.min(held(n), share.bytes(held(n))))
        become(n, held(n) + random.nextInt(2 << 20))
        if (budget.isExceeded) become(n, math.min(held(n), share.ofBatch(held(n))))
        become(n, math.min(held(n), share.afterBatch(held(n))))
        val most = 3 * limit + shares.size * (16L << 10)
        check(budget.usedBytes <= most, s"they hold ${budget.usedBytes} bytes")
      }
    }
  }

  /** Found step by step. */
  private def waterLevel(limit: Long, held: Seq[Long]): Long = {
    val sorted = held.sorted
    sorted.indices.iterator.map(i => (limit - sorted.take(i).sum) / (sorted.size - i) -> sorted(i))
      .collectFirst { case (level, bytes) if bytes > level => level }.getOrElse(limit)
  }
}

/** A sorted index with small leaves. Records are numbers, and their upper part is the key. */
object SortedIndexPart extends Part {
  override val name = "sorted-index"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)

  override def run(trial: Trial): Unit = {
    import trial.{chance, equal, random, sheltered}
    def bytes(key: Long): Array[Byte] = {
      val out = new Array[Byte](8)
      Platform.putLong(out, Bytes.ArrayOffset, java.lang.Long.reverseBytes(key))
      out
    }
    val index = new SortedIndex((record, base, offset, length) =>
        Bytes.compare(bytes(record >>> 16), Bytes.ArrayOffset, 8, base, offset, length),
      leafSize = 8 << random.nextInt(2))
    val keys = random.between(4, 200)
    var model = TreeMap.empty[Long, Long] // key to record
    var next = 0L
    val views = mutable.ArrayBuffer.empty[(SortedIndex.View, Iterator[Long])]
    def read(view: (SortedIndex.View, Iterator[Long]), most: Int): Unit =
      (1 to most).foreach(_ =>
        equal(view._1.next(), if (view._2.hasNext) view._2.next() else 0L,
          "the next record of a view"))
    (1 to random.between(20, 300)).foreach { _ =>
      val key = random.nextInt(keys).toLong + 1
      val record = key << 16 | next
      next = (next + 1) & 0xFFFF
      val growing = chance(60)
      try model.get(key) match {
          case None if growing =>
            trial.step(s"insert $key")
            index.insert(record, bytes(key), Bytes.ArrayOffset, 8)
            model += key -> record
          case Some(old) if chance(40) =>
            trial.step(s"replace $key")
            def replace(): Unit = index.replace(old, record, bytes(key), Bytes.ArrayOffset, 8)
            if (views.isEmpty) sheltered("replace")(replace()) else replace()
            model += key -> record
          case Some(old) if !growing =>
            trial.step(s"remove $key")
            def remove(): Unit = index.remove(old, bytes(key), Bytes.ArrayOffset, 8)
            if (views.isEmpty) sheltered("remove")(remove()) else remove()
            model -= key
          case _ if chance(20) && views.size < 4 =>
            trial.step(s"view from $key")
            val whole = chance(30)
            views += ((if (whole) index.freeze(null, 0L, 0)
                       else index.freeze(bytes(key), Bytes.ArrayOffset, 8)) ->
              (if (whole) model else model.rangeFrom(key)).values.toSeq.iterator)
          case _ if chance(30) && views.nonEmpty =>
            trial.step("the views end")
            views.foreach(read(_, keys + 1))
            views.clear()
            index.viewsEnded()
          case _ => views.foreach(read(_, random.nextInt(5)))
        }
      catch { case _: OutOfMemoryError if trial.hasFailed => }
      equal(TableCheck.inOrder(index), model.values.toSeq, "the index")
      equal(index.size, model.size, "the size of the index")
    }
    views.foreach(read(_, keys + 1))
  }
}

object KeySortPart extends Part {
  override val name = "key-sort"

  override def run(trial: Trial): Unit = {
    import trial.random
    val count = if (trial.chance(50)) random.nextInt(20) else random.nextInt(600)
    // Few or many different words. They differ at the top, in the middle, or at the end.
    val shift = random.nextInt(64)
    val words = Array.fill(count)(
      if (trial.chance(50)) random.nextLong() else random.nextInt(8).toLong << shift)
    val expected = words.indices.sortWith((a, b) => {
      val order = java.lang.Long.compareUnsigned(words(a), words(b))
      order < 0 || (order == 0 && a < b)
    })
    trial.equal(KeySort.byWord(words).toSeq, expected, "the order by word")

    val few = Array.fill(count)(random.nextInt(1 + random.nextInt(50)))
    val order = random.shuffle((0 until count).toList).toArray
    val low = random.nextInt(count + 1)
    val high = random.between(low, count + 1)
    val sorted = order.slice(0, low) ++ order.slice(low, high).sortBy(few(_)) ++ order.drop(high)
    KeySort.byComparison(order, new Array[Int](count), low, high,
      (a, b) => Integer.compare(few(a), few(b)))
    trial.equal(order.toSeq, sorted.toSeq, s"the order by comparison from $low until $high")
  }
}
