/** Tools that the Python commands run, in a JVM of their own or in the session's: they plan a job,
  * run a job without its sources, and copy stores from one provider to another. Python calls it by
  * name. It imports `driver`, `rows` and `base`. */
package org.apache.spark.sql.millpond.tools
