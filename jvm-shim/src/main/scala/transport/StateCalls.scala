package org.apache.spark.sql.millpond.transport

import java.io.{ByteArrayOutputStream, DataOutputStream}
import java.util.UUID

import scala.collection.mutable

import org.apache.spark.internal.Logging
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl, StatefulProcessorHandleState
}
import org.apache.spark.sql.execution.streaming.state.StateMessage.{
  StateRequest, StateResponse, StateResponseWithStringTypeVal, StateVariableRequest
}
import org.apache.spark.sql.millpond.base.{LimitedReads, MillpondError}
import org.apache.spark.util.ThreadUtils

/** What the user's code is at: a key by its number, and how many timers are done with. */
private[transport] final case class Turn(key: Int, timers: Long)

private[transport] object Turn {
  val None: Turn = Turn(-1, -1L)
}

/** Calls of the state API one by one, for all that does not travel in bulk. Spark's own state
  * server answers them, only without its socket and its thread. */
private[transport] final class StateCalls(
    handle: StatefulProcessorHandleImpl, operator: BulkOperator, reads: LimitedReads)
    extends Logging {
  val variables = new StateVariables(handle, operator)
  private val iterators = new mutable.HashMap[String, Iterator[Row]]
  private val pairs = new mutable.HashMap[String, Iterator[(Row, Row)]]
  private val timers = new mutable.HashMap[String, Iterator[Long]]
  private val bytes = new ByteArrayOutputStream
  private val out = new DataOutputStream(bytes)
  // most tasks never ask it, and it resolves an encoder
  private lazy val server = SparkServer(handle, operator, out, variables, iterators, pairs, timers)
  private var current = Turn.None

  var count = 0L

  /** Why a call failed. The user's code may have caught it. */
  var failure: Option[Exception] = None

  /** Answer a call in Spark's protocol. The implicit key is set. */
  def answer(call: Array[Byte], turn: Turn): Array[Byte] = {
    count += 1
    if (turn != current) {
      endTurn()
      current = turn
    }
    bytes.reset()
    try reads.marked(handleCall(StateRequest.parseFrom(call)))
    catch {
      // as in Spark's server: the worker raises it where the user's code called
      case e: Exception =>
        logError("Error reading message: " + e.getMessage, e)
        failure = failure.orElse(Some(e))
        bytes.reset()
        val response = StateResponse.newBuilder().setStatusCode(1)
        Option(e.getMessage).foreach(response.setErrorMessage)
        respond(response)
        handle.setHandleState(StatefulProcessorHandleState.CLOSED)
    }
    out.flush()
    bytes.toByteArray
  }

  /** What the user's code is at, if it has called. */
  def turn: Turn = current

  /** It went on to something else. Iterators that it has opened are over, as in Spark's server: it
    * may not have read them to their end. */
  def endTurn(): Unit = if (current != Turn.None) {
    iterators.clear()
    pairs.clear()
    timers.clear()
    reads.endMarked()
    current = Turn.None
  }

  private def respond(response: StateResponse.Builder): Unit = write(response.build().toByteArray)

  private def write(response: Array[Byte]): Unit = {
    out.writeInt(response.length)
    out.write(response)
  }

  /** Answer as Spark's server does. Every task asks for the schemas that users wrote as text.
    *
    * That server has a thread of its own, which has none of the session's settings. To it a
    * `timestamp` is always one with a zone. In the task's thread the state would get other
    * types. */
  private def parse(schema: String): Unit = {
    val json = StateCalls.parsed((operator.runId, schema))(
      ThreadUtils.runInNewThread("millpond-schema")(
        CatalystSqlParser.parseTableSchema(schema).json))
    val response = StateResponseWithStringTypeVal.newBuilder().setStatusCode(0).setValue(json)
    write(response.build().toByteArray)
  }

  private def handleCall(call: StateRequest): Unit = {
    import StateRequest.MethodCase._
    call.getMethodCase match {
      case STATEFULPROCESSORCALL =>
        val asked = call.getStatefulProcessorCall
        if (variables.make(asked)) respond(StateResponse.newBuilder().setStatusCode(0))
        else server.handleStatefulProcessorCall(asked)
      case TIMERREQUEST => server.handleTimerRequest(call.getTimerRequest)
      case UTILSREQUEST =>
        val request = call.getUtilsRequest
        if (request.hasParseStringSchema) parse(request.getParseStringSchema.getSchema)
        else server.handleUtilsRequest(request)
      case STATEVARIABLEREQUEST =>
        val request = call.getStateVariableRequest
        request.getMethodCase match {
          case StateVariableRequest.MethodCase.VALUESTATECALL =>
            server.handleValueStateRequest(request.getValueStateCall)
          case StateVariableRequest.MethodCase.LISTSTATECALL =>
            server.handleListStateRequest(request.getListStateCall)
          case StateVariableRequest.MethodCase.MAPSTATECALL =>
            server.handleMapStateRequest(request.getMapStateCall)
          case other => throw MillpondError.internal(s"a worker sent the call $other")
        }
      case other => throw MillpondError.internal(s"a worker sent the call $other")
    }
  }
}

private object StateCalls {
  // by run, because one day Spark may heed settings of its session
  private val parsed = new Recent[(UUID, String), String](256)
}
