package org.apache.spark.sql.millpond.base

/** Operators whose keys Spark places by something else than the keys that it stores: by columns of
  * other types or in another order, by a text's collation, or by times of another time zone.
  * Nothing that a store is given tells so. The operator's tasks do, before they open their
  * stores. */
object PlacedElsewhere {
  private val told = new ToldByTask[Set[(String, Long)]]

  /** The task of this thread runs such an operator. */
  def enter(runId: String, operator: Long): Unit = told.tell(Set(runId -> operator))(_ ++ _)

  /** A state reader may work within the task of another query: so the run counts. */
  def isTold(runId: String, operator: Long): Boolean =
    told.get.exists(_.contains(runId -> operator))
}
