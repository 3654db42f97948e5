package org.apache.spark.sql.millpond.engine

/** One task's use of the store. `attempt` is -1 outside tasks. */
final class Session(val attempt: Long)
