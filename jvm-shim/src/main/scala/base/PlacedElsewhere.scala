package org.apache.spark.sql.millpond.base

import org.apache.spark.{SparkContext, TaskContext}

/** Operators whose keys Spark places by something else than the keys that it stores: by columns of
  * other types or in another order, by a text's collation, or by times of another time zone.
  * Nothing that a store is given tells so. The operator's tasks do, before they open their
  * stores; where Spark runs its own nodes, a property of their job. */
object PlacedElsewhere {
  private val told = new ToldByTask[Set[(String, Long)]]

  /** The task of this thread runs such an operator. */
  def enter(runId: String, operator: Long): Unit = told.tell(Set(runId -> operator))(_ ++ _)

  /** The jobs that this thread starts from now on run such operators of a run, and no others. */
  def enterJobs(context: SparkContext, runId: String, operators: Seq[Long]): Unit =
    context.setLocalProperty(property(runId),
      if (operators.isEmpty) null else operators.mkString(","))

  private def property(runId: String) = s"millpond.placedElsewhere.$runId"

  /** A state reader may work within the task of another query: so the run counts. */
  def isTold(runId: String, operator: Long): Boolean =
    told.get.exists(_.contains(runId -> operator)) ||
      Option(TaskContext.get()).flatMap(task => Option(task.getLocalProperty(property(runId))))
        .exists(_.split(',').contains(operator.toString))
}
