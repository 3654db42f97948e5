package org.apache.spark.sql.millpond.driver

import org.apache.spark.{JobArtifactSet, SPARK_VERSION}
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark.UserFacingDataType
import org.apache.spark.sql.execution.python.{ArrowPythonRunner, PythonRowsAccess}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{BuildInfo, Json, Options, SparkCompatibility}
import org.apache.spark.sql.millpond.transport.{
  ApplyOperator, BulkMetrics, BulkOperator, FrameSize, Limits, PickleOut, SteppedAside
}
import org.apache.spark.sql.types.{StructField, StructType}

/** Decides how the state of a Python operator travels: in bulk, or by Spark's own transport. */
private[driver] object BulkTransport {
  private val Rows = 10000
  private val FrameBytes = 1L << 20

  def of(
      node: PythonNode,
      pythonMetrics: Map[String, SQLMetric],
      metric: String => SQLMetric
  ): Option[BulkOperator] = {
    val conf = SQLConf.get
    val keySchema =
      StructType(node.groupingAttributes.map(a => StructField(a.name, a.dataType, a.nullable)))
    if (!node.isStreaming) None
    else inBulk(node, conf, obstacle(node, conf, keySchema))(operator(node, conf, keySchema,
        pythonMetrics,
        BulkMetrics(BulkMetrics.names.map { case (name, _) => name -> metric(name) }.toMap)))
  }

  def ofApply(node: FlatMapGroupsInPandasWithStateExec): Option[ApplyOperator] = {
    val conf = SQLConf.get
    val obstacle = anyObstacle(conf, pandas = true)
    inBulk(node, conf, obstacle)(applyOperator(node, conf))
  }

  private def inBulk[A](
      node: StatefulOperator, conf: SQLConf, obstacle: => Option[String])(operator: => A)
      : Option[A] =
    if (!Options.resolve(conf.getAllConfs).string("python.transport").contains("bulk")) None
    else {
      val found = obstacle
      found.foreach(SteppedAside.say(node.getStateInfo, _))
      Option.when(found.isEmpty)(operator)
    }

  private def anyObstacle(conf: SQLConf, pandas: Boolean): Option[String] = {
    // much of what is used here is Spark's own, and may be another thing in the next patch
    val tested = BuildInfo.sparkVersion
    val version = Some(s"it was tested with Spark $tested, this is $SPARK_VERSION")
      .filter(_ => tested != SPARK_VERSION)
    val profiler = conf.pythonUDFProfiler.map(p => s"spark.sql.pyspark.udf.profiler is $p")
    val conversions = Some("Spark 4.2 has other conversions of pandas").filter(_ =>
      pandas && !SparkCompatibility.bulkPandas)
    version.orElse(profiler).orElse(conversions)
  }

  private def obstacle(node: PythonNode, conf: SQLConf, keySchema: StructType): Option[String] = {
    val bytes = Some("spark.sql.execution.pyspark.binaryAsBytes is false")
      .filter(_ => !conf.pysparkBinaryAsBytes)
    val key = keySchema.find(f => !PickleOut.isPlainKey(f.dataType)).map(f =>
      s"the grouping column ${f.name} has the type ${f.dataType.simpleString}")
    anyObstacle(conf, node.userFacingDataType == UserFacingDataType.PANDAS)
      .orElse(bytes).orElse(key)
  }

  private def applyOperator(
      node: FlatMapGroupsInPandasWithStateExec, conf: SQLConf): ApplyOperator = {
    val (_, offsets) = PythonRowsAccess.columns(
      node.groupingAttributes ++ node.child.output, node.groupingAttributes)
    val function = node.functionExpr.asInstanceOf[PythonUDF]
    val runnerConf = ArrowPythonRunner.getPythonRunnerConfMap(conf)
    val settings = Json.obj()
    settings.put("millpond", BuildInfo.millpondVersion)
    settings.put("result_id", function.resultId.id)
    settings.put("state_schema", node.stateType.json)
    val offsetsNode = settings.putArray("offsets")
    offsets.foreach(offsetsNode.add)
    val most = SQLConf.ARROW_EXECUTION_MAX_RECORDS_PER_BATCH.key
    val runner = settings.putObject("runner_conf")
    (runnerConf + (most -> conf.arrowMaxRecordsPerBatch.toString)).foreach { case (k, v) =>
      runner.put(k, v)
    }
    ApplyOperator(function.func, function.resultId.id, offsets, runnerConf, settings.toString,
      conf.sessionLocalTimeZone, JobArtifactSet.getCurrentJobArtifactState.map(_.uuid))
  }

  private def operator(
      node: PythonNode,
      conf: SQLConf,
      keySchema: StructType,
      pythonMetrics: Map[String, SQLMetric],
      bulkMetrics: BulkMetrics
  ): BulkOperator = {
    val (_, offsets) = PythonRowsAccess.columns(node.child.output, node.groupingAttributes)
    val pandas = node.userFacingDataType == UserFacingDataType.PANDAS
    val runnerConf = ArrowPythonRunner.getPythonRunnerConfMap(conf)
    val function = node.functionExpr.asInstanceOf[PythonUDF]
    val settings = Json.obj()
    settings.put("millpond", BuildInfo.millpondVersion)
    settings.put("pandas", pandas)
    settings.put("key_schema", keySchema.json)
    // With Avro, Spark's transport breaks at a null in an array: a worker must leave it to that.
    settings.put("nulls_within", conf.stateStoreEncodingFormat != "avro")
    val offsetsNode = settings.putArray("offsets")
    offsets.foreach(offsetsNode.add)
    if (node.hasInitialState) {
      val (_, initial) =
        PythonRowsAccess.columns(node.initialState.output, node.initialStateGroupingAttrs)
      val initialNode = settings.putArray("initial_offsets")
      initial.foreach(initialNode.add)
    }
    settings.put("max_rows", conf.arrowMaxRecordsPerBatch)
    settings.put("max_bytes", conf.arrowMaxBytesPerBatch)
    val runner = settings.putObject("runner_conf")
    runnerConf.foreach { case (k, v) => runner.put(k, v) }
    val most = if (conf.arrowMaxRecordsPerBatch > 0) conf.arrowMaxRecordsPerBatch else Rows
    BulkOperator(
      node.getStateInfo.queryRunId,
      function.func,
      function.resultId.id,
      pandas,
      runnerConf,
      settings.toString,
      keySchema,
      node.output,
      node.timeMode,
      node.batchTimestampMs,
      node.eventTimeWatermarkForEviction,
      conf.sessionLocalTimeZone,
      conf.arrowUseLargeVarTypes,
      JobArtifactSet.getCurrentJobArtifactState.map(_.uuid),
      FrameSize(math.min(most, Rows), FrameBytes),
      Limits(1000, 1 << 16),
      pythonMetrics,
      bulkMetrics
    )
  }
}
