package org.apache.spark.sql.millpond.driver

import java.util.Locale.ROOT

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
  def told(rows: RDD[InternalRow], info: Option[StatefulOperatorStateInfo], how: KeyPlacement,
      clocks: Option[WorkerClocks] = None): RDD[InternalRow] =
    info.fold(rows) { of =>
      val (run, operator) = (of.queryRunId.toString, of.operatorId)
      def found = if (clocks.forall(_.agree)) how else KeyPlacement.Elsewhere
      new ToldRDD(rows, () => KeyPlacement.enter(run, operator, found))
    }

  def ofScala(node: TransformWithStateExec): KeyPlacement = of(areStored(node), lossy = false)

  /** Spark's worker reads the names of a struct's fields in lower case. It takes those with a
    * capital letter for missing, and stores NULL for them. */
  def ofPython(grouping: Seq[Attribute], pandas: Boolean, inBulk: Boolean): KeyPlacement =
    of(areStable(grouping) && (inBulk || !haveCapitals(grouping)), lossy = pandas && !inBulk)

  private def of(alike: Boolean, lossy: Boolean): KeyPlacement =
    if (alike) KeyPlacement.ByKey(lossy) else KeyPlacement.Elsewhere

  private def haveCapitals(grouping: Seq[Attribute]): Boolean =
    grouping.exists(_.dataType.existsRecursively {
      case StructType(fields) => fields.exists(field => field.name.toLowerCase(ROOT) != field.name)
      case _ => false
    })

  /** Equal values are equal bytes. With a collation they need not be. */
  private def areStable(grouping: Seq[Attribute]): Boolean =
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
