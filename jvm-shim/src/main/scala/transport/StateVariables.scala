package org.apache.spark.sql.millpond.transport

import java.time.Duration

import scala.collection.mutable

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.execution.python.streaming.{
  ListStateInfo, MapStateInfo, ValueStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}
import org.apache.spark.sql.execution.streaming.state.StateMessage.{
  StateCallCommand, StatefulProcessorCall
}
import org.apache.spark.sql.streaming.TTLConfig
import org.apache.spark.sql.types.StructType

/** The state variables that a processor declared. Spark's server makes them in the same way, only
  * that it has encoders of its own for each task. */
private[transport] final class StateVariables(
    handle: StatefulProcessorHandleImpl, operator: BulkOperator) {
  val values = new mutable.HashMap[String, ValueStateInfo]
  val lists = new mutable.HashMap[String, ListStateInfo]
  val maps = new mutable.HashMap[String, MapStateInfo]

  /** Make the variable that `call` asks for.
    *
    * @return false: this is another call, or the name is taken, and Spark's server says so */
  def make(call: StatefulProcessorCall): Boolean = {
    import StatefulProcessorCall.MethodCase.{GETLISTSTATE, GETMAPSTATE, GETVALUESTATE}
    call.getMethodCase match {
      case GETVALUESTATE => added(values, call.getGetValueState) { (asked, schema, encoder) =>
          ValueStateInfo(
            handle.getValueState[Row](asked.getStateName, plain(schema), ttl(asked)),
            schema, encoder.createDeserializer())
        }
      case GETLISTSTATE => added(lists, call.getGetListState) { (asked, schema, encoder) =>
          ListStateInfo(
            handle.getListState[Row](asked.getStateName, plain(schema), ttl(asked)),
            schema, encoder.createDeserializer(), encoder.createSerializer())
        }
      case GETMAPSTATE => added(maps, call.getGetMapState) { (asked, schema, encoder) =>
          val valueSchema = StructType.fromString(asked.getMapStateValueSchema)
          val ofValues = operator.encoders.resolved(valueSchema)
          MapStateInfo(
            handle.getMapState[Row, Row](asked.getStateName, plain(schema),
              plain(valueSchema), ttl(asked)),
            schema, valueSchema, encoder.createDeserializer(), encoder.createSerializer(),
            ofValues.createDeserializer(), ofValues.createSerializer())
        }
      case _ => false
    }
  }

  private def added[A](variables: mutable.HashMap[String, A], asked: StateCallCommand)(
      make: (StateCallCommand, StructType, ExpressionEncoder[Row]) => A): Boolean = {
    val isNew = !variables.contains(asked.getStateName)
    if (isNew) {
      val schema = StructType.fromString(asked.getSchema)
      variables(asked.getStateName) = make(asked, schema, operator.encoders.resolved(schema))
    }
    isNew
  }

  // for Spark's own classes
  private def plain(schema: StructType) = operator.encoders.plain(schema)

  private def ttl(asked: StateCallCommand): TTLConfig =
    if (asked.hasTtl) TTLConfig(Duration.ofMillis(asked.getTtl.getDurationMs)) else TTLConfig.NONE
}
