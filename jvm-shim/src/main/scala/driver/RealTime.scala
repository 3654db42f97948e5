package org.apache.spark.sql.millpond.driver

import java.util.Locale

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{Names, Options}

/** Lets queries run in Spark's real-time mode. Spark starts such a query only if the session names
  * its own RocksDB store, or none. So with the option `realTime` the extension takes Millpond's
  * name out of the session, and gives it to each query by itself: into the query's copy of the
  * session, before it reads its logs. Spark writes it into the offset log as ever. */
private object RealTime extends Logging {
  private val Provider = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val Option = Options.prefix + "realTime"
  /** Whether `prepare` took the name out of the session. Its own name must not look like an option
    * that is spelled wrong: `Options.refuseNear`. */
  private val Taken = "spark.millpondRealTimeTookProvider"
  private val Format = SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key

  /** A value that is neither true nor false is refused with the other options, before the first
    * task. */
  private def isOn(session: SparkSession): Boolean =
    session.conf.getOption(Option).exists(_.trim.toLowerCase(Locale.ROOT) == "true")

  /** The session has a streaming plan, so a query may start. A session whose option was switched
    * off again gets the name back. */
  def prepare(session: SparkSession): Unit =
    if (!isOn(session)) {
      if (session.conf.getOption(Taken).isDefined) {
        session.conf.unset(Taken)
        if (!names(session)) session.conf.set(Provider, Names.ProviderClass)
      }
    } else if (session.conf.getOption(Provider).contains(Names.ProviderClass)) {
      session.conf.unset(Provider)
      session.conf.set(Taken, "true")
      logInfo(
        s"$Provider is unset in the session: the option realTime gives ${Names.ProviderClass} to " +
          "every query that starts in it.")
    }

  /** The provider for a query that starts in `session` now. */
  def asked(session: SparkSession): String =
    if (isOn(session) && !names(session)) Names.ProviderClass else session.conf.get(Provider)

  private def names(session: SparkSession): Boolean =
    session.asInstanceOf[org.apache.spark.sql.classic.SparkSession].sessionState.conf
      .contains(Provider)

  def started(query: StreamExecution): Unit =
    if (isOn(query.sparkSession)) {
      val own = query.sparkSessionForStream.conf
      // this session keeps the name, also where the offset log brings it
      own.set(Option, "false")
      if (!names(query.sparkSession)) {
        own.set(Provider, Names.ProviderClass)
        // a query that is to change to real-time mode needs it from its first batch on; the commit
        // log of an older one wins
        if (RealTimeNodes.AreStateful && !query.sparkSession.sessionState.conf.contains(Format))
          own.set(Format, "2")
        RealTimeNodes.started(query)
      }
    }

  def runs(plan: SparkPlan): Boolean = plan.exists(_.isInstanceOf[RealTimeStreamScanExec])
}
