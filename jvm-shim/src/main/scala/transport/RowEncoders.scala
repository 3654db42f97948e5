package org.apache.spark.sql.millpond.transport

import java.util.{LinkedHashMap, Map => JavaMap, UUID}

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.types.StructType

/** Resolved encoders of rows, for the tasks of this JVM. To resolve one takes the analyzer some
  * milliseconds, and each task of a small batch needs several. A resolved one does not change, and
  * makes converters anew for whoever asks. It depends on the session's options, which are the same
  * for a run of a query. */
private[transport] object RowEncoders {
  private type Key = (UUID, StructType)
  private val Most = 256
  private val found = new LinkedHashMap[Key, ExpressionEncoder[Row]](16, 0.75f, true) {
    override def removeEldestEntry(
        eldest: JavaMap.Entry[Key, ExpressionEncoder[Row]]): Boolean = size > Most
  }

  /** @param runId of the query that has state of these rows */
  def resolved(runId: UUID, schema: StructType): ExpressionEncoder[Row] = found.synchronized {
    found.computeIfAbsent((runId, schema), _ => ExpressionEncoder(schema).resolveAndBind())
  }
}
