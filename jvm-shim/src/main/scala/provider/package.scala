/** Spark's contract: the provider, the stores that it opens, and what tasks call on them. Spark
  * calls it through `MillpondStateStoreProvider`. It imports `engine`, `changelog`, `rows`,
  * `driver`, `agent` and `base`. */
package org.apache.spark.sql.millpond.provider
