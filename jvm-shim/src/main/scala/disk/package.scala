/** The disk tier: a local RocksDB that takes in sorted files, the flush that makes these from
  * changelogs, and the sources of a tier that a rescale put together. It knows no engine: locks,
  * folders and versions are the caller's. `engine` calls it. It imports `changelog`, `rows`,
  * `memory` and `base`. */
package org.apache.spark.sql.millpond.disk
