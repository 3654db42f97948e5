package org.apache.spark.sql.millpond.driver

import org.apache.spark.{Partition, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow

/** Lets the tasks of a stateful operator know something. Their stores are opened when the first row
  * is asked for, or before: what is above them tells in time. */
private[driver] final class ToldRDD(before: RDD[InternalRow], tell: () => Unit)
    extends RDD[InternalRow](before) {
  override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions
  override def compute(split: Partition, context: TaskContext): Iterator[InternalRow] = {
    tell()
    firstParent[InternalRow].iterator(split, context)
  }
}
