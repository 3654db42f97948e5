package org.apache.spark.sql.millpond.agent

/** What the Python agent implements (docs/design/0001-planes-and-protocol.md). Request and
  * answer are JSON texts. */
trait AgentCalls {
  def call(method: String, request: String): String
}

/** The entry point at which a started agent reports. */
final class AgentRegistry(onRegister: AgentCalls => Unit) {
  def register(agent: AgentCalls): Unit = onRegister(agent)

  /** The agent calls this to let this JVM move files of Hadoop's file systems. */
  def files(method: String, request: String): String = HadoopFiles.call(method, request)
}
