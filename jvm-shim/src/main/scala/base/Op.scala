package org.apache.spark.sql.millpond.base

/** Kinds of records; numbers are durable. */
object Op {
  val Put: Byte = 1
  val Delete: Byte = 2
  val Merge: Byte = 3
}
