package org.apache.spark.sql.millpond.driver

import org.apache.spark.TaskContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{
  GenericInternalRow, JoinedRow, UnsafeProjection, UnsafeRow
}
import org.apache.spark.sql.catalyst.plans.logical.{EventTimeTimeout, ProcessingTimeTimeout}
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.PythonRowsAccess
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  StatefulOperatorCustomMetric, StatefulOperatorCustomSumMetric
}
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate
import flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper.StateData
import flatmapgroupswithstate.GroupStateImpl
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.millpond.transport.{ApplyOperator, ApplyRunner, SteppedAside}
import org.apache.spark.util.CompletionIterator

/** The node of `applyInPandasWithState`. Its worker is Millpond's unless [[BulkTransport]] says
  * otherwise; rows, state and the store are handled with Spark's classes. */
private[driver] final class ApplyNode(
    @transient t: FlatMapGroupsInPandasWithStateExec, rows: SparkPlan)
    extends FlatMapGroupsInPandasWithStateExec(
      t.functionExpr,
      t.groupingAttributes,
      t.outAttributes,
      t.stateType,
      t.stateInfo,
      t.stateFormatVersion,
      t.outputMode,
      t.timeoutConf,
      t.batchTimestampMs,
      t.eventTimeWatermarkForLateEvents,
      t.eventTimeWatermarkForEviction,
      t.skipEmittingInitialStateKeys,
      rows
    ) {
  override protected def withNewChildInternal(
      newChild: SparkPlan): FlatMapGroupsInPandasWithStateExec = new ApplyNode(t, newChild)
  override def makeCopy(arguments: Array[AnyRef]): SparkPlan = ApplyNodes.copyOf(this, arguments)
  override def canEqual(other: Any): Boolean = other.isInstanceOf[ApplyNode]
  override def equals(other: Any): Boolean = other.isInstanceOf[ApplyNode] && super.equals(other)
  override def hashCode: Int = super.hashCode

  /** It is decided once, on the driver. */
  private lazy val operator: Option[ApplyOperator] = BulkTransport.ofApply(this)

  override def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    super.customStatefulOperatorMetrics :+
      StatefulOperatorCustomSumMetric(ApplyOperator.Keys._1, ApplyOperator.Keys._2)

  override protected def doExecute(): RDD[InternalRow] = {
    operator: Unit
    super.doExecute()
  }

  override def createInputProcessor(store: StateStore): InputProcessor =
    operator.fold(super.createInputProcessor(store))(new Processor(_, store))

  /** What Spark's own does with a partition, around another worker. */
  private final class Processor(operator: ApplyOperator, store: StateStore)
      extends InputProcessor(store) {
    private val Never = GroupStateImpl.NO_TIMESTAMP
    // a key whose state timed out has no rows: its one row has only the key
    private val nullable = child.output.map(_.withNullability(true))
    private val (columns, _) =
      PythonRowsAccess.columns(groupingAttributes ++ child.output, groupingAttributes)
    private val nullableColumns = columns.map(_.withNullability(true))

    override def processNewData(rows: Iterator[InternalRow]): Iterator[InternalRow] =
      process(
        PythonRowsAccess.byKey(rows, groupingAttributes, child.output, columns).map {
          case (key, group) =>
            val row = key.asInstanceOf[UnsafeRow]
            (row, stateManager.getState(store, row), group)
        },
        hasTimedOut = false
      )

    override def processTimedOutState(): Iterator[InternalRow] = {
      val threshold = timeoutConf match {
        case ProcessingTimeTimeout => batchTimestampMs
        case EventTimeTimeout => eventTimeWatermarkForEviction
        case _ => None
      }
      if (!isTimeoutEnabled) Iterator.empty
      else {
        val keys = groupingAttributes.map(_.withNullability(true))
        val values = nullable.filterNot(keys.contains)
        val project = UnsafeProjection.create(nullableColumns, groupingAttributes ++ values)
        val nothing = new GenericInternalRow(new Array[Any](values.length))
        val expired = stateManager.getAllState(store).filter { state =>
          state.timeoutTimestamp != Never && state.timeoutTimestamp < threshold.get
        }
        process(
          expired.map { state =>
            val row: InternalRow = project(new JoinedRow(state.keyRow, nothing))
            (state.keyRow, state, Iterator.single(row))
          },
          hasTimedOut = true
        )
      }
    }

    private def process(
        groups: Iterator[(UnsafeRow, StateData, Iterator[InternalRow])],
        hasTimedOut: Boolean): Iterator[InternalRow] = {
      val context = TaskContext.get()
      val runner = new ApplyRunner(
        operator,
        DataTypeUtils.fromAttributes(nullableColumns),
        stateEncoder.asInstanceOf[ExpressionEncoder[Row]],
        DataTypeUtils.fromAttributes(groupingAttributes),
        DataTypeUtils.fromAttributes(outAttributes),
        stateType,
        pythonMetrics,
        longMetric(ApplyOperator.Keys._1)
      )(SteppedAside.say(getStateInfo, _))
      val input = groups.map { case (key, state, group) =>
        val groupState = GroupStateImpl.createForStreaming(
          Option(state.stateObj),
          batchTimestampMs.getOrElse(Never),
          eventTimeWatermarkForEviction.getOrElse(Never),
          timeoutConf,
          hasTimedOut,
          watermarkPresent
        ).asInstanceOf[GroupStateImpl[Row]]
        (key, groupState, group)
      }
      runner.compute(input, context.partitionId(), context).flatMap { case (states, results) =>
        CompletionIterator[InternalRow, Iterator[InternalRow]](
          results,
          states.foreach { case (key, state, oldTimeout) => write(key, state, oldTimeout) }
        ).map { row =>
          numOutputRows += 1
          row
        }
      }
    }

    private def write(key: UnsafeRow, state: GroupStateImpl[Row], oldTimeout: Long): Unit = {
      val timeout = state.getTimeoutTimestampMs.orElse(Never)
      if (state.isRemoved && !state.getTimeoutTimestampMs.isPresent) {
        stateManager.removeState(store, key)
        numRemovedStateRows += 1
      } else if (state.isUpdated || state.isRemoved || timeout != oldTimeout) {
        stateManager.putState(store, key, if (state.exists) state.get else null, timeout)
        numUpdatedStateRows += 1
      }
    }

    override protected def callFunctionAndUpdateState(
        state: StateData, rows: Iterator[InternalRow], hasTimedOut: Boolean
    ): Iterator[InternalRow] =
      throw new UnsupportedOperationException("Python's function is not called key by key")
  }
}
