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
  /** How long the agent may work at a call before it answers "not done yet". Who started the agent
    * has set how long its connections wait, and others may ask it. */
  def waitMs: Int
  /** The answer's text. Fails with Py4JNetworkException if the agent is gone; if it did not answer
    * in time, the cause is a SocketTimeoutException. No error has a word of the request. */
  def call(method: String, request: String): String
  def kill(): Unit
}
