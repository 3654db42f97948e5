/** The names that users write in Spark's settings, and agents of any version in their code. They
  * stay. No package imports this one. */
package org.apache.spark.sql.millpond

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.sql.millpond.agent.AgentCalls
import org.apache.spark.sql.millpond.driver.{Extension, LogFiles}
import org.apache.spark.sql.millpond.provider.StoreProvider

/** The provider that `spark.sql.streaming.stateStore.providerClass` names. */
class MillpondStateStoreProvider extends StoreProvider

/** The session extension that `spark.sql.extensions` names. */
class MillpondExtension extends Extension

/** What the extension gives to `spark.sql.streaming.checkpointFileManagerClass`. */
class MillpondLogFiles(path: Path, conf: Configuration) extends LogFiles(path, conf)

/** What an agent of any version says that it implements. */
trait AgentApi extends AgentCalls
