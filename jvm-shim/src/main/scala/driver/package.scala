/** What runs on the driver of a query: what `MillpondExtension` does to plans, the checks before
  * the first task, heartbeats, and the nodes of `transformWithState`. Spark calls it through the
  * extension. The provider asks it whether the extension is there, so it lies below the provider
  * and knows its name alone. It imports `agent` and `base`. */
package org.apache.spark.sql.millpond.driver
