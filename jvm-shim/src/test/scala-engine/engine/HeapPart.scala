package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.base.MillpondException
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A store with the backend heap writes beside another one. Whatever the others hold, it keeps all
  * its rows in memory, or refuses to go on: it has no disk tier to read one from. */
object HeapPart extends Part {
  override val name = "heap"

  override def run(trial: Trial): Unit = Trial.unheard {
    import trial.{chance, check, random}
    val rows = random.between(500, 5000)
    trial.step(s"$rows rows")
    val store = new LoadedStore(isHeap = true, rows)
    import store.{engine, other}
    val budget = engine.budget
    try {
      engine.begin(store.session)
      val most = random.between(1L, LoadedStore.BudgetBytes)
      other.begin(most)
      val left = random.between(0L, most)
      budget.add(left)
      trial.step(s"another store held $most bytes when its batch began, and now $left")
      var isRefused = false
      try
        (1 to 3).foreach { _ =>
          if (chance(50)) store.put(rows + random.nextInt(100))
          // the budget was exceeded when the store looked first
          engine.pressure.afterWrite()
        }
      catch { case e: MillpondException if e.kind == "MEMORY_EXHAUSTED" => isRefused = true }
      trial.step(if (isRefused) "it is refused" else "it goes on")
      if (isRefused) check(budget.isExceeded, "it is refused, although there is room")
      budget.add(-left)
      check(store.family.table.complete, "it looks for rows on disk")
      (0 until rows).foreach(n => check(store.has(n), s"row $n is gone"))
      engine.abort(store.session)
    } finally store.close()
  }
}
