/** What every package needs: errors, options, JSON, local folders, the seams for tests, and what
  * differs between versions of Spark. All packages call it. It imports none of them. */
package org.apache.spark.sql.millpond.base
