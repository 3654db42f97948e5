/** Python's `transformWithState` with its state in bulk: many keys a message, rows, state and
  * changes together, instead of a message for each call of the state API. */
package org.apache.spark.sql.millpond.transport
