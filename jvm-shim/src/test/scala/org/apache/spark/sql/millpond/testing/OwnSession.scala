package org.apache.spark.sql.millpond.testing

import java.lang.ref.WeakReference

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper
import org.apache.spark.sql.streaming.StreamingQuery

/** The copy of the user's session in which a query runs its batches. */
object OwnSession {
  def of(query: StreamingQuery): WeakReference[SparkSession] =
    new WeakReference(
      query.asInstanceOf[StreamingQueryWrapper].streamingQuery.sparkSessionForStream)
}
