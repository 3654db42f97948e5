package org.apache.spark.sql.millpond.disk

import scala.collection.mutable

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A key filter that grows, with budgets that have room for it or not. It never denies a key that
  * was added, and denies nearly all others while the budget has room. */
object KeyFilterPart extends Part {
  override val name = "key-filter"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)

  override def run(trial: Trial): Unit = {
    import trial.{chance, check, equal, random}
    val roomy = chance(50)
    val budget = new MemoryBudget(if (roomy) 1L << 24 else 1L << random.between(10, 18))
    var made: KeyFilter = null
    try {
      val expected = random.nextInt(6000).toLong
      trial.step(s"a filter for $expected keys within ${budget.limitBytes} bytes")
      made =
        try new KeyFilter(budget, expected)
        catch { case _: MillpondException if trial.hasFailed => new KeyFilter(budget, expected) }
      val filter = made
      val known = mutable.HashSet.empty[Seq[Byte]]
      def key(): Array[Byte] = {
        val bytes = new Array[Byte](random.between(4, 40))
        random.nextBytes(bytes)
        bytes
      }
      (1 to random.between(1, 12)).foreach { _ =>
        (1 to random.nextInt(3000)).foreach { _ =>
          val bytes = key()
          filter.add(bytes, Bytes.ArrayOffset, bytes.length)
          known += bytes.toSeq
        }
        trial.step(s"${known.size} keys")
        check(known.forall(k => filter.mayHave(k.toArray, Bytes.ArrayOffset, k.size)),
          "a key that was added is denied")
        check(filter.keys <= known.size, "keys were counted twice")
      }
      equal(budget.usedBytes, filter.usedBytes, "what the budget says")
      check(filter.usedBytes <= math.max(1536L, budget.limitBytes / 8), "it is too large")
      if (roomy && !trial.hasFailed) {
        val wrong = (1 to 2000).count { _ =>
          val k = key()
          !known(k.toSeq) && filter.mayHave(k, Bytes.ArrayOffset, k.length)
        }
        check(wrong < 100, s"of 2000 other keys $wrong are not denied")
      }
    } finally if (made != null) made.close()
    equal(budget.usedBytes, 0L, "memory after the end")
  }
}
