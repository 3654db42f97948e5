package org.apache.spark.sql.millpond.transport

import java.io.{ByteArrayOutputStream, DataOutputStream}

import scala.collection.mutable

import org.apache.spark.internal.Logging
import org.apache.spark.sql.Row
import org.apache.spark.sql.execution.python.streaming.{
  ListStateInfo, MapStateInfo, ValueStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl, StatefulProcessorHandleState
}
import org.apache.spark.sql.execution.streaming.state.StateMessage.{
  StateRequest, StateResponse, StateVariableRequest
}
import org.apache.spark.sql.millpond.base.MillpondError
import org.apache.spark.sql.types.StructType

/** Calls of the state API one by one, for all that does not travel in bulk. Spark's own state
  * server answers them, only without its socket and its thread. */
private[transport] final class StateCalls(
    handle: StatefulProcessorHandleImpl,
    keySchema: StructType,
    batchTimestampMs: Option[Long],
    watermarkMs: Option[Long]
) extends Logging {
  val values = new mutable.HashMap[String, ValueStateInfo]
  val lists = new mutable.HashMap[String, ListStateInfo]
  val maps = new mutable.HashMap[String, MapStateInfo]
  private val iterators = new mutable.HashMap[String, Iterator[Row]]
  private val pairs = new mutable.HashMap[String, Iterator[(Row, Row)]]
  private val timers = new mutable.HashMap[String, Iterator[Long]]
  private val bytes = new ByteArrayOutputStream
  private val out = new DataOutputStream(bytes)
  private val server = SparkServer(handle, keySchema, batchTimestampMs, watermarkMs, out, values,
    lists, iterators, maps, pairs, timers)
  private var currentKey = -1

  var count = 0L

  /** Answer a call in Spark's protocol. The implicit key is set. */
  def answer(call: Array[Byte], key: Int): Array[Byte] = {
    count += 1
    if (key != currentKey) {
      iterators.clear()
      pairs.clear()
      timers.clear()
      currentKey = key
    }
    bytes.reset()
    try handleCall(StateRequest.parseFrom(call))
    catch {
      // as in Spark's server: the worker raises it where the user's code called
      case e: Exception =>
        logError("Error reading message: " + e.getMessage, e)
        bytes.reset()
        val response = StateResponse.newBuilder().setStatusCode(1)
        Option(e.getMessage).foreach(response.setErrorMessage)
        val built = response.build().toByteArray
        out.writeInt(built.length)
        out.write(built)
        handle.setHandleState(StatefulProcessorHandleState.CLOSED)
    }
    out.flush()
    bytes.toByteArray
  }

  private def handleCall(call: StateRequest): Unit = {
    import StateRequest.MethodCase._
    call.getMethodCase match {
      case STATEFULPROCESSORCALL =>
        server.handleStatefulProcessorCall(call.getStatefulProcessorCall)
      case TIMERREQUEST => server.handleTimerRequest(call.getTimerRequest)
      case UTILSREQUEST => server.handleUtilsRequest(call.getUtilsRequest)
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
