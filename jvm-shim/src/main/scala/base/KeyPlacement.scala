package org.apache.spark.sql.millpond.base

import org.apache.spark.{SparkContext, TaskContext}

/** By what Spark places the keys of a `transformWithState`. Nothing that a store is given tells so.
  * The operator's tasks do, before they open their stores; where Spark runs its own nodes, a
  * property of their job. */
sealed trait KeyPlacement

object KeyPlacement {
  /** By the keys that it stores, but for those that it made of others.
    * @param lossy pandas made them, which has no NULL for numbers: among floats it is NaN, and
    * whole numbers beside it become floats, of which Spark makes NULL */
  final case class ByKey(lossy: Boolean) extends KeyPlacement

  /** By something else: by columns of other types or in another order, by a text's collation, by
    * times of another time zone, or by fields that are lost. */
  case object Elsewhere extends KeyPlacement

  /** Nobody knows: the rows come from a store that was told nothing.
    * @param lossy as of `ByKey` */
  final case class Unknown(lossy: Boolean) extends KeyPlacement

  private val told = new ToldByTask[Map[(String, Long), KeyPlacement]]

  /** The task of this thread runs such an operator. */
  def enter(runId: String, operator: Long, how: KeyPlacement): Unit =
    told.tell(Map((runId, operator) -> how))(_ ++ _)

  /** The jobs that this thread starts from now on run these operators of a run, and no others. */
  def enterJobs(context: SparkContext, runId: String, areByKey: Map[Long, Boolean]): Unit =
    context.setLocalProperty(property(runId),
      if (areByKey.isEmpty) null else areByKey.map { case (o, is) => s"$o=$is" }.mkString(","))

  private def property(runId: String) = s"millpond.keyPlacement.$runId"

  /** What was told of an operator. A state reader may work within the task of another query: so the
    * run counts. */
  def of(runId: String, operator: Long): Option[KeyPlacement] =
    told.get.flatMap(_.get(runId -> operator)).orElse(
      Option(TaskContext.get()).flatMap(task => Option(task.getLocalProperty(property(runId))))
        .flatMap(_.split(',').collectFirst {
          case one if one == s"$operator=true" => ByKey(lossy = false)
          case one if one == s"$operator=false" => Elsewhere
        }))
}

/** A store that may be told by what Spark placed the keys that it gets from now on. */
private[millpond] trait PlacedStore {
  def place(how: KeyPlacement): Unit
}
