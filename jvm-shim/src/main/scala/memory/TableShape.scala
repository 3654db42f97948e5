package org.apache.spark.sql.millpond.memory

/** What a table offers beside point access: nothing, all rows of a prefix, or the
  * order of its keys. */
sealed trait TableShape

object TableShape {
  case object Plain extends TableShape
  case object Chained extends TableShape
  case object Sorted extends TableShape
}
