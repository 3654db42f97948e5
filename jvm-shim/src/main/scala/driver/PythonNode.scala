package org.apache.spark.sql.millpond.driver

import scala.concurrent.duration.NANOSECONDS

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, PythonUDF}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark.UserFacingDataType
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.PythonRowsAccess
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  StatefulOperatorCustomMetric, StatefulOperatorCustomSumMetric
}
import org.apache.spark.sql.execution.streaming.operators.stateful.join
import join.StreamingSymmetricHashJoinHelper.StateStoreAwareZipPartitionsHelper
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.{
  StatefulProcessorHandleImpl
}
import org.apache.spark.sql.execution.streaming.state.{
  NoPrefixKeyStateEncoderSpec, StateStore, StateStoreConf, StateStoreId, StateStoreOps,
  StateStoreProviderId
}
import org.apache.spark.sql.millpond.base.{LimitedReads, PlacedStore, SparkCompatibility}
import org.apache.spark.sql.millpond.transport.{
  BulkMetrics, BulkOperator, BulkRows, SteppedAside
}
import org.apache.spark.sql.streaming.TimeMode
import org.apache.spark.util.{CompletionIterator, SerializableConfiguration}

/** The node of Python's API without the check of the provider; see [[TransformWithStateNodes]]. Its
  * state travels in bulk unless [[BulkTransport]] says otherwise. */
private[driver] final class PythonNode(
    @transient t: TransformWithStateInPySparkExec, rows: SparkPlan, initialRows: SparkPlan)
    extends TransformWithStateInPySparkExec(
      t.functionExpr,
      t.groupingAttributes,
      SparkCompatibility.outputAttributes(t),
      t.outputMode,
      t.timeMode,
      t.stateInfo,
      t.batchTimestampMs,
      t.prevBatchTimestampMs,
      t.eventTimeWatermarkForLateEvents,
      t.eventTimeWatermarkForEviction,
      t.userFacingDataType,
      rows,
      t.isStreaming,
      t.hasInitialState,
      initialRows,
      t.initialStateGroupingAttrs,
      t.initialStateSchema
    ) {
  def this(t: TransformWithStateInPySparkExec) = this(t, t.child, t.initialState)

  override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
  // Spark's own would make a node of its class first. That resolves an encoder, and this happens
  // several times a batch.
  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateInPySparkExec =
    new PythonNode(t, newLeft, newRight)
  override def makeCopy(arguments: Array[AnyRef]): SparkPlan =
    TransformWithStateNodes.copyOf(this, arguments)
  override def canEqual(other: Any): Boolean = other.isInstanceOf[PythonNode]
  override def equals(other: Any): Boolean = other.isInstanceOf[PythonNode] && super.equals(other)
  override def hashCode: Int = super.hashCode

  /** How state travels: it is decided once, on the driver. */
  @transient private lazy val bulk: Option[BulkOperator] =
    BulkTransport.of(this, pythonMetrics, longMetric)

  override def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    super.customStatefulOperatorMetrics ++ BulkMetrics.names.map { case (name, about) =>
      StatefulOperatorCustomSumMetric(name, about)
    }

  override protected def doExecute(): RDD[InternalRow] =
    KeyPlaces.told(bulk.fold(super.doExecute())(inBulk), stateInfo, placed(bulk.isDefined), clocks)

  private def isPandas = userFacingDataType == UserFacingDataType.PANDAS
  private def placed(inBulk: Boolean) = KeyPlaces.ofPython(groupingAttributes, isPandas, inBulk)

  /** Those of the workers, if keys depend on them. */
  private def clocks: Option[WorkerClocks] =
    Option.when(isPandas && KeyPlaces.haveTimes(groupingAttributes)) {
      val function = functionExpr.asInstanceOf[PythonUDF].func
      WorkerClocks(conf.sessionLocalTimeZone, Option(function.envVars.get("TZ")))
    }

  private def inBulk(operator: BulkOperator): RDD[InternalRow] = {
    metrics // Spark's node makes them on the driver, too
    if (!hasInitialState)
      child.execute().mapPartitionsWithStateStore[InternalRow](
        getStateInfo,
        schemaForKeyRow,
        schemaForValueRow,
        NoPrefixKeyStateEncoderSpec(schemaForKeyRow),
        session.sqlContext.sessionState,
        Some(session.streams.stateStoreCoordinator),
        useColumnFamilies = true,
        useMultipleValuesPerKey = true
      )((store, rows) => partition(operator, store, rows, None))
    else {
      val storeConf = new StateStoreConf(session.sqlContext.sessionState.conf)
      val hadoopConf =
        SerializableConfiguration.broadcast(sparkContext, session.sessionState.newHadoopConf())
      child.execute().stateStoreAwareZipPartitions(
        initialState.execute(),
        getStateInfo,
        storeNames = Seq(),
        session.streams.stateStoreCoordinator
      ) { (partitionId, rows, initialRows) =>
        val info = getStateInfo
        val id = StateStoreId(info.checkpointLocation, info.operatorId, partitionId)
        val store = StateStore.get(
          storeProviderId = StateStoreProviderId(id, info.queryRunId),
          keySchema = schemaForKeyRow,
          valueSchema = schemaForValueRow,
          NoPrefixKeyStateEncoderSpec(schemaForKeyRow),
          version = info.storeVersion,
          stateStoreCkptId = info.getStateStoreCkptId(partitionId).map(_.head),
          stateSchemaBroadcast = info.stateSchemaMetadata,
          useColumnFamilies = true,
          storeConf = storeConf,
          hadoopConf = hadoopConf.value.value
        )
        partition(operator, store, rows, Some(initialRows))
      }
    }
  }

  private def rowsByKey(
      rows: Iterator[InternalRow], grouping: Seq[Attribute], plan: SparkPlan): BulkRows = {
    val (columns, offsets) = PythonRowsAccess.columns(plan.output, grouping)
    BulkRows(PythonRowsAccess.byKey(rows, grouping, plan.output, columns),
      DataTypeUtils.fromAttributes(columns), offsets)
  }

  /** What Spark's node does with a partition, around another way to the worker. */
  private def partition(
      operator: BulkOperator,
      store: StateStore,
      rows: Iterator[InternalRow],
      initialRows: Option[Iterator[InternalRow]]
  ): Iterator[InternalRow] = {
    val beganNanos = System.nanoTime
    val inTime = watermarkExpressionForLateEvents match {
      case Some(late) if timeMode == TimeMode.EventTime() =>
        applyRemovingRowsOlderThanWatermark(rows, LateRows.predicate(late, child.output))
      case _ => rows
    }
    val keyEncoder = operator.keyEncoder.asInstanceOf[ExpressionEncoder[Any]]
    val handle = new StatefulProcessorHandleImpl(store, getStateInfo.queryRunId, keyEncoder,
      timeMode, isStreaming, batchTimestampMs, prevBatchTimestampMs, metrics)
    def steppedAside(why: String): Unit = {
      SteppedAside.say(getStateInfo, why)
      store match {
        case ours: PlacedStore => ours.place(placed(inBulk = false))
        case _ =>
      }
    }
    val reads: LimitedReads = store match {
      case ours: LimitedReads => ours
      case _ => LimitedReads.Unlimited
    }
    val results = operator.run(
      rowsByKey(inTime, groupingAttributes, child),
      initialRows.map(rowsByKey(_, initialStateGroupingAttrs, initialState)),
      handle,
      reads)(steppedAside)
    CompletionIterator[InternalRow, Iterator[InternalRow]](
      results, {
        longMetric("allUpdatesTimeMs") += NANOSECONDS.toMillis(System.nanoTime - beganNanos)
        longMetric("commitTimeMs") += timeTakenMs {
          handle.doTtlCleanup()
          store.commit(): Unit
        }
        setStoreMetrics(store)
        setOperatorMetrics()
      }
    ).map { row =>
      longMetric("numOutputRows") += 1
      row
    }
  }
}
