package org.apache.spark.sql.millpond.base

/** How this JVM starts an agent and how long it waits for it. */
final case class AgentSettings(python: Option[String], driverPython: Option[String],
    startTimeoutMs: Long, callTimeoutMs: Int) {
  /** How long the agent works at a call before it answers "not done yet". */
  def waitMs: Int = math.min(AgentSettings.LongestWaitMs, callTimeoutMs / 4)
}

private[millpond] object AgentSettings {
  val LongestWaitMs = 5000
}

/** What a call needs of an agent. */
private[millpond] trait AgentLink {
  def pid: Long
  /** The answer's text. Fails with Py4JNetworkException if the agent is gone or did
    * not answer in time. */
  def call(method: String, request: String): String
  def timedOut(e: Throwable): Boolean
  def kill(): Unit
}
