/** The memory tier: tables of records in native memory, found by hash, by prefix or in order. It
  * knows bytes and no rows of Spark. `rows` holds its tables, `engine` reads and writes them,
  * `changelog` and `disk` use its helpers for bytes and sorting. It imports `base`. */
package org.apache.spark.sql.millpond.memory
