package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec

/** Replaces the node of `applyInPandasWithState` by one with a worker of Millpond's. */
private[driver] object ApplyNodes {
  val admit: PartialFunction[SparkPlan, SparkPlan] = {
    case node: FlatMapGroupsInPandasWithStateExec if !node.isInstanceOf[ApplyNode] =>
      TransformWithStateNodes.replaced(node, new ApplyNode(node, node.child))
  }

  def copyOf(node: ApplyNode, arguments: Array[AnyRef]): SparkPlan = {
    val copy = TransformWithStateNodes.rebuilt(
      classOf[FlatMapGroupsInPandasWithStateExec], arguments)
    TransformWithStateNodes.replaced(node, new ApplyNode(copy, copy.child))
  }
}
