package org.apache.spark.sql.millpond

/** What the Python agent implements (docs/design/0001-planes-and-protocol.md). Request and answer are JSON texts. */
trait AgentApi {
  def call(method: String, request: String): String
}

/** The entry point at which a started agent reports. */
final class AgentRegistry(onRegister: AgentApi => Unit) {
  def register(agent: AgentApi): Unit = onRegister(agent)

  /** The other way round: the agent asks this JVM to move files of Hadoop's file systems. */
  def files(method: String, request: String): String = HadoopFiles.call(method, request)
}
