package org.apache.spark.sql.millpond.tools

import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStoreProvider}
import org.apache.spark.sql.millpond.rows.FamilyDefinition

/** How Spark 4.3 reads a store of any provider. */
private[tools] object StateReading {
  /** Open a store at a version, to read these column families, if it has any. As in Spark's state
    * reader, one store registers the families and another one reads them. */
  def open(provider: StateStoreProvider, version: Long, id: Option[String],
      families: Seq[(String, FamilyDefinition)]): ReadStateStore = {
    if (families.nonEmpty) {
      val first = provider.getReadStore(version, id)
      try
        families.foreach { case (name, d) =>
          first.registerColFamily(name, d.spec.keySchema, d.valueSchema, d.spec, d.multi,
            d.internal)
        }
      finally first.release()
    }
    provider.getReadStore(version, id)
  }
}
