package org.apache.spark.sql.millpond.driver

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{MillpondError, Names, Options, Shell}
import org.apache.spark.sql.millpond.observe.DriverReports

/** Checks a query before its first task, and lets `transformWithState` run on Millpond. */
private object StatefulPlanRule extends Rule[SparkPlan] {
  private val Ours = Names.ProviderClass

  private def adopt(state: String, provider: String): String =
    s"Run: ${adoptCommand(state)}, and start the query on the new one. " +
      "Or keep the provider with which it began: set " +
      s"${SQLConf.STATE_STORE_PROVIDER_CLASS.key} to $provider."

  /** The line to paste.
    *
    * @param state `<checkpoint>/state` */
  def adoptCommand(state: String): String = {
    val root = new Path(state).getParent.toString.replaceFirst("^file:/+", "/")
    s"millpond adopt ${Shell.word(root)} ${Shell.word(s"$root-millpond")}"
  }

  override def apply(plan: SparkPlan): SparkPlan = {
    val infos = plan.collect {
      case writer: StateStoreWriter if writer.stateInfo.isDefined => writer.getStateInfo
    }
    if (infos.isEmpty) plan
    else {
      val effective = SQLConf.get.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS)
      if (effective == Ours) {
        val run = infos.head.queryRunId
        if (!StartCheck.isDone(run)) {
          // the settings of a run stay as they are
          Options.refuseNear(SQLConf.get.getAllConfs)
          val options = Options.resolve(SQLConf.get.getAllConfs)
          // the operator in a batch query belongs to no run
          if (AskedProviders.of(run).isDefined) SparkSession.getActiveSession.foreach { session =>
            StartCheck.check(session, infos.head, options)
            SparksSettings.say(run)
            Sinks.note(session, infos.head)
            Ttls.resolve(plan, run, options)
            DriverReports.start(session.sparkContext)
          }
        }
        if (AskedProviders.of(run).isDefined)
          SparkSession.getActiveSession.foreach(Balance.planned(_, plan))
        if (RealTime.runs(plan)) RealTimeNodes.planned(plan)
        else
          Ttls.planned(
            plan.transformUp(TransformWithStateNodes.admit.orElse(ApplyNodes.admit)), run)
      } else {
        // the offset log pins the provider with which a query began; Spark goes
        // on with it in silence
        if (AskedProviders.of(infos.head.queryRunId).contains(Ours))
          throw MillpondError.of("FOREIGN_CHECKPOINT",
            s"$effective wrote this query's Spark checkpoint, and the offset log pins it: " +
              "Millpond cannot continue it.",
            adopt(infos.head.checkpointLocation, effective))
        plan
      }
    }
  }
}
