package org.apache.spark.sql.millpond.transport

import java.util.UUID

import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.millpond.base.{Event, Events}

/** Says why the state of an operator does not travel in bulk: once in each JVM for each run. */
private[millpond] object SteppedAside {
  // nobody tells an executor of the end of a run
  private val said = new Recent[(UUID, Long), Unit](1024)

  def say(info: StatefulOperatorStateInfo, reason: String): Unit =
    said(info.queryRunId -> info.operatorId)(
      Events.log(Event.of("python_transport_stepped_aside",
        "reason" -> s"operator ${info.operatorId}: $reason")))
}
