/** Changelog files: their format, the writer with its blocks, the reader, and the change feed
  * that shows them to Spark. `engine` writes and reads them, `disk` reads them, `provider` hands
  * out the feed. It imports `rows`, `memory` and `base`. */
package org.apache.spark.sql.millpond.changelog
