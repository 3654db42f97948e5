package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A store has forgotten its rows, and nothing loads it again: its load failed, or its task runs
  * elsewhere. The other stores may use what it held. */
object UnloadedPart extends Part {
  override val name = "unloaded"

  override def run(trial: Trial): Unit = Trial.unheard {
    val rows = trial.random.between(1000, 5000)
    trial.step(s"$rows rows")
    val store = new LoadedStore(isHeap = false, rows)
    import store.{engine, other}
    val budget = engine.budget
    try {
      other.begin(0L)
      engine.begin(store.session)
      engine.diskLock.during(engine.unload())
      trial.equal(budget.usedBytes, 0L, "the memory of the store without rows")
      val grown = 2 * LoadedStore.BudgetBytes
      budget.add(grown)
      val share = other.bytes(grown)
      budget.add(-grown)
      trial.equal(share, LoadedStore.BudgetBytes, "the share of the only store that has rows")
    } finally store.close()
  }
}
