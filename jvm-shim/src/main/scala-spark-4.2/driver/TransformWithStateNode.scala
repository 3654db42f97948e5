package org.apache.spark.sql.millpond.driver

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec
}

/** The node of the Scala API without the check of the provider; see [[TransformWithStateNodes]]. */
private[driver] final class TransformWithStateNode(t: TransformWithStateExec)
    extends TransformWithStateExec(
      t.keyDeserializer,
      t.valueDeserializer,
      t.groupingAttributes,
      t.dataAttributes,
      t.statefulProcessor,
      t.timeMode,
      t.outputMode,
      t.keyEncoder,
      t.outputObjAttr,
      t.stateInfo,
      t.batchTimestampMs,
      t.prevBatchTimestampMs,
      t.eventTimeWatermarkForLateEvents,
      t.eventTimeWatermarkForEviction,
      t.child,
      t.isStreaming,
      t.hasInitialState,
      t.initialStateGroupingAttrs,
      t.initialStateDataAttrs,
      t.initialStateDeserializer,
      t.initialState
    ) {
  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
  override protected def doExecute(): RDD[InternalRow] =
    KeyPlaces.told(super.doExecute(), stateInfo, KeyPlaces.ofScala(this))
  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateExec =
    new TransformWithStateNode(super.withNewChildrenInternal(newLeft, newRight))
  override def makeCopy(arguments: Array[AnyRef]): SparkPlan =
    TransformWithStateNodes.copyOf(this, arguments)
  override def canEqual(other: Any): Boolean = other.isInstanceOf[TransformWithStateNode]
  override def equals(other: Any): Boolean =
    other.isInstanceOf[TransformWithStateNode] && super.equals(other)
  override def hashCode: Int = super.hashCode
}
