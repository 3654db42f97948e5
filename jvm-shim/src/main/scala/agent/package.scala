/** The link to the Python agent of this JVM, which decides what lies in storage: the agent's
  * start, the calls to it, and the Hadoop files that it asks this JVM to move. The engine, the
  * provider and the driver call it. It imports `base`. */
package org.apache.spark.sql.millpond.agent
