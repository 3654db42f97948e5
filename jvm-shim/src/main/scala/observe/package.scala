/** What others may know of this JVM: counters of its stores, metrics for Spark's metrics system,
  * and the report that each executor sends to the driver. Stores add what they counted once a
  * batch, and show the rest as values that any thread may read without a lock. `engine` and
  * `provider` call it on executors, `driver` on the driver. It imports `agent` and `base`. */
package org.apache.spark.sql.millpond.observe
