/** How rows of Spark become keys and values: column families and their encoding, key groups, and
  * the slots that a partition owns. `changelog`, `disk`, `engine`, `provider` and `tools` call
  * it. It imports `memory` and `base`. */
package org.apache.spark.sql.millpond.rows
