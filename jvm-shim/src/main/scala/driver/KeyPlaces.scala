package org.apache.spark.sql.millpond.driver

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec
}
import org.apache.spark.sql.millpond.base.KeyPlacement
import org.apache.spark.sql.types.{DataType, StructType, TimestampType}

/** Whether Spark places the rows of `transformWithState` by the keys that it stores. It places them
  * by the grouping columns. */
private[driver] object KeyPlaces {

  /** The rows of an operator, whose tasks know it.
    * @param clocks must agree, too */
  def told(rows: RDD[InternalRow], info: Option[StatefulOperatorStateInfo], alike: Boolean,
      clocks: Option[WorkerClocks] = None): RDD[InternalRow] =
    info.fold(rows) { of =>
      val (run, operator) = (of.queryRunId.toString, of.operatorId)
      def how = if (alike && clocks.forall(_.agree)) KeyPlacement.ByKey else KeyPlacement.Elsewhere
      new ToldRDD(rows, () => KeyPlacement.enter(run, operator, how))
    }

  /** Equal values are equal bytes. With a collation they need not be. */
  def areStable(grouping: Seq[Attribute]): Boolean =
    grouping.forall(column => UnsafeRowUtils.isBinaryStable(column.dataType))

  /** With a zone. */
  def haveTimes(grouping: Seq[Attribute]): Boolean =
    grouping.exists(_.dataType.existsRecursively(_.isInstanceOf[TimestampType]))

  /** The Scala API stores what the encoder of the key makes. After `groupBy(..).as[K, V]` its
    * columns may be wider than those of the grouping, or in another order: an Int's hash is not a
    * Long's. */
  def areStored(node: TransformWithStateExec): Boolean = {
    val (stored, grouping) = (node.keyEncoder.schema, node.groupingAttributes)
    areStable(grouping) && stored.length == grouping.length && inOrder(stored, grouping) &&
    stored.zip(grouping).forall { case (field, column) =>
      DataType.equalsIgnoreNullability(field.dataType, column.dataType)
    }
  }

  /** Spark finds the fields of a class by their names, and those of a tuple by their order. */
  private def inOrder(stored: StructType, grouping: Seq[Attribute]): Boolean =
    stored.length == 1 ||
      stored.fieldNames.corresponds(grouping.map(_.name))(_.equalsIgnoreCase(_)) ||
      stored.fieldNames.sameElements(stored.indices.map(i => s"_${i + 1}"))
}
