package org.apache.spark.sql.millpond.driver

import org.apache.spark.{JobArtifactSet, SPARK_VERSION}
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark.UserFacingDataType
import org.apache.spark.sql.execution.python.{ArrowPythonRunner, PythonRowsAccess}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{BuildInfo, Json, Options, SparkCompatibility}
import org.apache.spark.sql.millpond.transport.{
  BulkMetrics, BulkOperator, FrameSize, Limits, PickleOut, SteppedAside
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
    val options = Options.resolve(conf.getAllConfs)
    val keySchema =
      StructType(node.groupingAttributes.map(a => StructField(a.name, a.dataType, a.nullable)))
    if (!options.string("python.transport").contains("bulk") || !node.isStreaming) None
    else obstacle(node, conf, keySchema) match {
      case Some(reason) =>
        SteppedAside.say(node.getStateInfo, reason)
        None
      case None => Some(operator(node, conf, keySchema, pythonMetrics,
          BulkMetrics(BulkMetrics.names.map { case (name, _) => name -> metric(name) }.toMap)))
    }
  }

  private def obstacle(node: PythonNode, conf: SQLConf, keySchema: StructType): Option[String] = {
    // much of what is used here is Spark's own, and may be another thing in the next patch
    val tested = BuildInfo.sparkVersion
    val version = Some(s"it was tested with Spark $tested, this is $SPARK_VERSION")
      .filter(_ => tested != SPARK_VERSION)
    val profiler = conf.pythonUDFProfiler.map(p => s"spark.sql.pyspark.udf.profiler is $p")
    val bytes = Some("spark.sql.execution.pyspark.binaryAsBytes is false")
      .filter(_ => !conf.pysparkBinaryAsBytes)
    val key = keySchema.find(f => !PickleOut.isPlainKey(f.dataType)).map(f =>
      s"the grouping column ${f.name} has the type ${f.dataType.simpleString}")
    val pandas = Some("Spark 4.2 has other conversions of pandas").filter(_ =>
      node.userFacingDataType == UserFacingDataType.PANDAS && !SparkCompatibility.bulkPandas)
    version.orElse(profiler).orElse(bytes).orElse(key).orElse(pandas)
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
