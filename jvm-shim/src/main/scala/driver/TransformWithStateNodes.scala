package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec
}

/** Spark runs `transformWithState` on a provider by one name only, which its nodes check on the
  * driver. This replaces each node by one without that check. Spark copies a node when its children
  * or expressions change, and compares it when a rule may have changed it: the replacement must
  * survive all of these. */
private[driver] object TransformWithStateNodes {
  val admit: PartialFunction[SparkPlan, SparkPlan] = {
    case node: TransformWithStateExec if !node.isInstanceOf[TransformWithStateNode] =>
      replaced(node, new TransformWithStateNode(node))
    case node: TransformWithStateInPySparkExec if !node.isInstanceOf[PythonNode] =>
      replaced(node, new PythonNode(node))
  }

  def replaced(from: SparkPlan, to: SparkPlan): SparkPlan = {
    to.copyTagsFrom(from)
    from.logicalLink.foreach(to.setLogicalLink)
    to
  }

  /** Spark makes a copy by the constructor of the node's own class, which takes
    * other arguments here. */
  def rebuilt[A](node: Class[A], arguments: Array[AnyRef]): A =
    node.cast(node.getConstructors.head.newInstance(arguments: _*))

  def copyOf(node: TransformWithStateNode, arguments: Array[AnyRef]): SparkPlan =
    replaced(node, new TransformWithStateNode(rebuilt(classOf[TransformWithStateExec], arguments)))

  def copyOf(node: PythonNode, arguments: Array[AnyRef]): SparkPlan =
    replaced(node, new PythonNode(rebuilt(classOf[TransformWithStateInPySparkExec], arguments)))
}
