/** What others may know of this JVM: counters of its stores, metrics for Spark's metrics system,
  * the report that each executor sends to the driver, and the tab *State* that shows the reports.
  * Stores add what they counted once a batch, and show the rest as values that any thread may read
  * without a lock. `engine` and `provider` call it on executors, `driver` on the driver, a history
  * server its plugin. It imports `agent` and `base`. */
package org.apache.spark.sql.millpond.observe
