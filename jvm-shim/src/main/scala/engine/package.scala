/** The state of one store: `StoreEngine` leads it from version to version over both tiers. Beside
  * it are the parts that load, replay, flush, take snapshots, warm up and give memory back.
  * `provider` calls it. It imports `disk`, `changelog`, `rows`, `memory`, `agent` and `base`. */
package org.apache.spark.sql.millpond.engine
