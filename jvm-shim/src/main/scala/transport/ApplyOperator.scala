package org.apache.spark.sql.millpond.transport

import org.apache.spark.api.python.{PythonFunction, SimplePythonFunction}

/** What all partitions of one `applyInPandasWithState` have in common. It goes to executors with
  * the tasks.
  *
  * @param settings of the worker, as JSON; see `entry.py` */
private[millpond] final case class ApplyOperator(
    function: PythonFunction,
    resultId: Long,
    offsets: Array[Int],
    runnerConf: Map[String, String],
    settings: String,
    timeZoneId: String,
    jobArtifactUUID: Option[String]
) {
  private[transport] def wrapped: PythonFunction =
    Entry.wrap(function, "begin_apply", settings)
}

private[millpond] object ApplyOperator {
  val Keys: (String, String) =
    "millpondPythonKeys" -> "keys that Millpond's Python worker handled"
}

private[transport] object Entry {
  private lazy val source: String = {
    val in = getClass.getClassLoader.getResourceAsStream("millpond/transport_entry.py")
    try new String(in.readAllBytes(), java.nio.charset.StandardCharsets.UTF_8)
    finally in.close()
  }

  /** A function with which the worker calls one of `millpond/transport_entry.py`, with the user's
    * pickled function. */
  def wrap(function: PythonFunction, begin: String, settings: String): PythonFunction = {
    val command = PickleOut.call(source, begin, function.command.toArray, settings)
    SimplePythonFunction(command.toSeq, function.envVars, function.pythonIncludes,
      function.pythonExec, function.pythonVer, function.broadcastVars, function.accumulator)
  }
}
