package org.apache.spark.sql.millpond.observe

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.scheduler.SparkListener
import org.apache.spark.status.{AppHistoryServerPlugin, ElementTrackingStore}
import org.apache.spark.ui.{SparkUI, SparkUITab}
import org.apache.spark.util.kvstore.KVStore

/** The tab *State* in Spark's own web pages.
  *
  * @param isLive whether the application runs: else ages count from the last report */
private[observe] final class StateTab(ui: SparkUI, val store: KVStore, val isLive: Boolean)
    extends SparkUITab(ui, "state") {
  attachPage(new StatePage(this))
}

private[observe] object StateTab {
  /** Nothing, if the application has no web pages (`spark.ui.enabled=false`). */
  def attach(context: SparkContext): Unit = context.ui.foreach { ui =>
    context.statusStore.store match {
      case store: ElementTrackingStore =>
        context.listenerBus.addToStatusQueue(new ReportListener(store))
        ui.attachTab(new StateTab(ui, store, isLive = true))
      case _ => ()
    }
  }
}

/** Shows the tab *State* of an application that has ended, on a history server that has Millpond's
  * jar on its class path. Spark finds it by `META-INF/services`. */
final class StateHistory extends AppHistoryServerPlugin {
  override def createListeners(conf: SparkConf, store: ElementTrackingStore): Seq[SparkListener] =
    Seq(new ReportListener(store))

  override def setupUI(ui: SparkUI): Unit = {
    val store = ui.store.store
    if (StoredReports.all(store).nonEmpty) ui.attachTab(new StateTab(ui, store, isLive = false))
  }
}
