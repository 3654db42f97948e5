package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A store finds the budget exceeded. Before it does something about that, another store gives back
  * so much that there is room: rows and batch stay in memory. */
object ReliefPart extends Part {
  override val name = "relief"

  override def run(trial: Trial): Unit = Trial.unheard {
    val rows = trial.random.between(4000, 5000)
    trial.step(s"$rows rows")
    val store = new LoadedStore(isHeap = false, rows)
    import store.{engine, other}
    try {
      engine.begin(store.session)
      other.begin(LoadedStore.BudgetBytes)
      store.put(rows)
      trial.check(!engine.budget.isExceeded, "there is no room")
      engine.pressure.afterWrite()
      trial.equal(engine.metrics.spills, 0L, "the number of spills")
      (0 to rows).foreach(n => trial.check(store.has(n), s"row $n is gone"))
      engine.abort(store.session)
    } finally store.close()
  }
}
