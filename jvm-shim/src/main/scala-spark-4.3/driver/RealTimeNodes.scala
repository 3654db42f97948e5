package org.apache.spark.sql.millpond.driver

import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.{MetadataAccess, RealTimeTrigger}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec, TransformWithStateExecBase
}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{
  OperatorStateMetadataV1, OperatorStateMetadataV2
}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{KeyPlacement, Names}

/** The plans of stateful queries in real-time mode. Spark compares the class of each node with a
  * list, after every rule that a session can add, so a node cannot be replaced as
  * [[TransformWithStateNodes]] does it. Instead each node of the final plan learns that Millpond is
  * among the providers that `transformWithState` may use. */
private object RealTimeNodes extends Logging {
  val AreStateful = true

  /** Spark refuses a query that began with format 1, and says to begin anew. */
  def started(query: StreamExecution): Unit = if (query.trigger.isInstanceOf[RealTimeTrigger])
    query.commitLog.getLatest().foreach { case (_, last) =>
      if (last.stateUniqueIds.isEmpty)
        logWarning(
          s"The query of ${query.resolvedCheckpointRoot} has Spark checkpoint format 1, which " +
            "real-time mode refuses. It goes on with any other trigger. To take its state into a " +
            "query of format 2, use `millpond savepoint bootstrap`: docs/guides/real-time.md.")
    }

  /** Called before the query reads its logs, with any trigger. A batch that was cut short in
    * real-time mode has left what [[described]] wrote, and no entry in the offset log. This run may
    * have other operators, with other state, and Spark writes no file that is there. */
  def clear(query: StreamExecution): Unit = {
    val root = new Path(query.resolvedCheckpointRoot)
    try {
      val conf = query.sparkSession.sessionState.newHadoopConf()
      val files = CheckpointFileManager.create(root, conf)
      def listed(folder: Path): Seq[Path] =
        if (files.exists(folder)) files.list(folder).map(_.getPath).toSeq else Nil
      // the first store makes the folder: a query of another provider has none
      if (files.exists(CheckpointPaths.millpond(root))) {
        val operators = listed(new Path(root, "state"))
        val written = operators.flatMap(o => listed(OperatorStateMetadataV2.metadataDirPath(o)))
        // Looked at last: Spark's entry of a micro-batch, and that of a rescale, was there before
        // what is listed. Only a command that makes a Spark checkpoint writes the log later.
        StartCheck.refuseUnfinished(root, conf)
        val last = query.offsetLog.getLatestBatchId()
        written.filter(_.getName.toLongOption.exists(_ > last.getOrElse(-1L)))
          .foreach(files.delete)
        if (last.isEmpty)
          operators.foreach(o => files.delete(OperatorStateMetadataV1.metadataFilePath(o)))
      }
    } catch {
      case NonFatal(e) => logWarning(
          s"what a batch in real-time mode may have left in $root is not removed: ${e.getMessage}")
    }
  }

  /** The plan of a query in real-time mode: Spark's list of nodes decides about it. Without the
    * list the user wants to run what Spark does not know, such as Python's node. Called on the
    * thread that runs the query's batches. No `foreachBatch` of real-time mode has older ones. */
  def planned(plan: SparkPlan): SparkPlan =
    if (SQLConf.get.getConf(SQLConf.STREAMING_REAL_TIME_MODE_ALLOWLIST_CHECK)) {
      tellPlaces(plan)
      plan
    } else plan.transformUp(TransformWithStateNodes.admit)

  /** What [[TransformWithStateNode]] lets its tasks know. */
  private def tellPlaces(plan: SparkPlan): Unit =
    plan.collect { case node: TransformWithStateExec => node }
      .groupBy(_.getStateInfo.queryRunId).foreach { case (run, nodes) =>
        val areByKey = nodes.map(n => n.getStateInfo.operatorId -> KeyPlaces.areStored(n)).toMap
        KeyPlacement.enterJobs(plan.session.sparkContext, run.toString, areByKey)
      }

  private lazy val supported =
    PrivateField.of(
      classOf[TransformWithStateExecBase],
      "SUPPORTED_STATE_STORE_PROVIDERS",
      "transformWithState cannot run on Millpond in real-time mode",
      Some("another trigger")
    )

  /** Spark describes a plan that is final, or begins to run it: it asks a provider for its metrics
    * for each stateful node, before the node checks the provider's name. In real-time mode Spark
    * writes down which operators there are when the batch ends, and with any other trigger before
    * its first task. A store must know its operator when it opens. What is written stays: Spark's
    * own call finds it there. Of a batch that is cut short, [[clear]] removes it. */
  def described(query: StreamExecution): Unit = if (isFinal && query.lastExecution != null) {
    val execution = query.lastExecution
    execution.executedPlan.foreach {
      case node: TransformWithStateExec if node.isRealTimeMode =>
        supported.set(node, Set(Names.ProviderClass))
      case _ =>
    }
    if (execution.isRealTimeMode) MetadataAccess.writeOperators(execution)
  }

  /** A plan that is being made must not be asked for. */
  private def isFinal: Boolean = StackWalker.getInstance.walk[Boolean](
    _.anyMatch(_.getClassName.startsWith("org.apache.spark.sql.execution.SQLExecution")))
}
