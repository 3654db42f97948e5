package org.apache.spark.sql.millpond.driver

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.{ExecutorAllocationClient, SparkContext}
import org.apache.spark.scheduler.{ExecutorCacheTaskLocation, TaskLocation}
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning
import org.apache.spark.sql.execution.{SparkPlan, UnionExec}
import org.apache.spark.sql.execution.exchange.Exchange
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  StatefulOperatorStateInfo, StateStoreWriter
}
import org.apache.spark.sql.execution.streaming.state.{
  CoordinatorAccess, StateStoreId, StateStoreProviderId
}
import org.apache.spark.status.api.v1.ExecutorSummary
import org.apache.spark.util.Utils

/** Where stores are, and who may have them. Spark places a task where its coordinator says that the
  * task's store is. So to move a store is to tell the coordinator another executor, before the
  * batch: the task opens the store there, and the old executor's maintenance closes its own. */
private[driver] object Placement {
  final case class LiveExecutor(id: String, host: String, cores: Int)

  /** The stores of one operator: its state, and the names that a partition has. */
  final case class Operator(info: StatefulOperatorStateInfo, names: Seq[String]) {
    def stores(partition: Int): Seq[StateStoreProviderId] = names.map(name =>
      StateStoreProviderId(
        StateStoreId(info.checkpointLocation, info.operatorId, partition, name),
        info.queryRunId))
  }

  /** The stateful operators of each stage, the one whose place Spark asks for first. A task of a
    * stage opens the stores of all. Where branches of a union have tasks of their own, each is a
    * stage here. */
  def stages(plan: SparkPlan): Seq[Seq[Operator]] = {
    val found = ArrayBuffer.empty[Seq[Operator]]
    def walk(node: SparkPlan): Seq[Operator] = {
      val branches = node.children.map(walk)
      val below = branches.flatten
      node match {
        case _: Exchange =>
          if (below.nonEmpty) found += below
          Nil
        // Spark takes the tasks of all branches then, one after the other. Else each task has a
        // partition of every branch, as of both sides of a join.
        case u: UnionExec if u.outputPartitioning.isInstanceOf[UnknownPartitioning] =>
          found ++= branches.filter(_.nonEmpty)
          Nil
        case w: StateStoreWriter if w.stateInfo.isDefined =>
          Operator(w.getStateInfo, w.stateStoreNames) +: below
        case _ => below
      }
    }
    val last = walk(plan)
    if (last.nonEmpty) found += last
    found.toSeq
  }

  /** Those that take tasks now; None while Spark does not yet tell all of a new one, or where
    * executors do not come and go. */
  def executors(context: SparkContext): Option[Seq[LiveExecutor]] = {
    val (all, known) = look(context)
    if (known.size < all) None else Some(known.filterNot(_.isExcluded).map(live))
  }

  /** Those of them of which Spark tells all. */
  def known(context: SparkContext): Seq[LiveExecutor] =
    look(context)._2.filterNot(_.isExcluded).map(live)

  private def look(context: SparkContext): (Int, Seq[ExecutorSummary]) =
    context.schedulerBackend match {
      case backend: ExecutorAllocationClient =>
        val ids = backend.getExecutorIds().filter(backend.isExecutorActive).toSet
        (ids.size, context.statusStore.executorList(true).filter(e => ids.contains(e.id)))
      case _ => (1, Nil)
    }

  private def live(e: ExecutorSummary) =
    LiveExecutor(e.id, Utils.parseHostPort(e.hostPort)._1, math.max(1, e.totalCores))

  /** The executor that has the store, or had it last. */
  def where(store: StateStoreProviderId): Option[String] =
    CoordinatorAccess.onDriver().getLocation(store).map(TaskLocation(_)).collect {
      case at: ExecutorCacheTaskLocation => at.executorId
    }

  /** Let the next task that needs these stores run on `target`. A store that nobody has opened
    * stays unknown.
    * @return the others */
  def send(stores: Seq[StateStoreProviderId], target: LiveExecutor): Seq[StateStoreId] = {
    val coordinator = CoordinatorAccess.onDriver()
    val open = stores.filter(coordinator.getLocation(_).isDefined)
    open.foreach(coordinator.reportActiveInstance(_, target.host, target.id, Nil))
    open.map(_.storeId)
  }
}
