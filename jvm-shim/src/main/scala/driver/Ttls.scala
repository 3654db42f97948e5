package org.apache.spark.sql.millpond.driver

import java.util.{Locale, UUID}
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}

import scala.util.Try

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.plans.{InnerLike, LeftSemi}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.streaming.ProcessingTimeTrigger
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  StateStoreSaveExec, StateStoreWriter, StreamingDeduplicateExec
}
import org.apache.spark.sql.execution.streaming.operators.stateful.join.{
  StreamingSymmetricHashJoinExec
}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{BatchTtls, MillpondError, Options, TimeToLive}
import org.apache.spark.sql.streaming.OutputMode

/** Which operators of a query have a time to live, by the options `ttl` and `ttl.operators`.
  * Refuses what cannot be meant, before the first task. Runs on the driver. */
private object Ttls {
  private val queries = new ConcurrentHashMap[UUID, StreamExecution]
  private val resolved = new ConcurrentHashMap[UUID, Map[Long, Long]]

  def started(query: StreamExecution, run: UUID): Unit = { queries.put(run, query); () }
  def ended(run: UUID): Unit = { queries.remove(run); resolved.remove(run); () }

  private def writersOf(plan: SparkPlan): Seq[StateStoreWriter] =
    plan.collect { case writer: StateStoreWriter if writer.stateInfo.isDefined => writer }

  /** Called with the first plan of a run. */
  def resolve(plan: SparkPlan, run: UUID, options: Options): Unit = {
    val (default, listed) = (options.string("ttl"), options.string("ttl.operators"))
    if (default.isDefined || listed.isDefined) {
      val trigger = Option(queries.get(run)).map(_.trigger)
      resolved.put(run,
        new TtlOptions(default, listed, RealTime.runs(plan), trigger.collect {
            case ProcessingTimeTrigger(intervalMs) => intervalMs
          }).resolve(writersOf(plan).map(w => TtlOperator(w.getStateInfo.operatorId, w.shortName,
              refusal(w)))))
    }
    ()
  }

  /** The plan of a batch, whose tasks know the time to live of each operator, and the time that
    * Spark gave the batch. */
  def planned(plan: SparkPlan, run: UUID): SparkPlan = {
    val ttls = resolved.get(run)
    if (ttls == null || ttls.isEmpty) plan
    else {
      val batch = queries.get(run).lastExecution
      val now = BatchTtls(run.toString, batch.offsetSeqMetadata.batchTimestampMs, ttls)
      plan.transformUp {
        case writer: StateStoreWriter
          if writer.stateInfo.exists(i => ttls.contains(i.operatorId)) =>
          if (batch.currentBatchId != writer.getStateInfo.storeVersion)
            throw MillpondError.internal(
              s"the plan of batch ${writer.getStateInfo.storeVersion} came while Spark ran batch " +
                s"${batch.currentBatchId}: its time is not known.")
          TtlExec(now, writer.asInstanceOf[SparkPlan])
      }
    }
  }

  /** Why an operator can have no time to live. */
  private def refusal(writer: StateStoreWriter): Option[String] = writer match {
    case _: StreamingDeduplicateExec => None
    case save: StateStoreSaveExec =>
      if (save.outputMode.contains(OutputMode.Append))
        Some("in the output mode append it gives out a group once, when the watermark passes it: " +
          "groups that ended before would never come out. Use the output mode update")
      else None
    case join: StreamingSymmetricHashJoinExec =>
      val gives = join.joinType match {
        case _: InnerLike | LeftSemi => None
        case other => Some(
            s"a ${other.sql.toLowerCase(Locale.ROOT)} join gives out a row without a match when " +
              "the watermark passes it: one that ended before would never come out. Bound the " +
              "join by watermarks")
      }
      gives.orElse(
        if (join.stateFormatVersion == 2) None
        else Some(s"its state has the format ${join.stateFormatVersion}, and rows of a join end " +
          "in the format 2 only. The query's first start took it from " +
          SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key))
    case other =>
      val name = other.shortName
      Some(
        if (name.startsWith("dedupeWithinWatermark") || name.startsWith("sessionWindow"))
          "the watermark ends its rows"
        else if (name.startsWith("transformWithState"))
          "it has a time to live of its own, TTLConfig"
        else if (name.contains("GroupsWithState") || name.startsWith("applyInPandas"))
          "it has time-outs of its own, GroupState.setTimeoutDuration"
        else if (name.contains("Limit")) "more rows would pass than the limit allows"
        else "Millpond does not know what that would do to its results")
  }
}

/** @param refused why it can have no time to live */
private final case class TtlOperator(id: Long, name: String, refused: Option[String])

/** @param triggerMs the least time between two batches, if the trigger says so */
private final class TtlOptions(default: Option[String], listed: Option[String], realTime: Boolean,
    triggerMs: Option[Long]) {
  private def invalid(option: String, text: String, why: String, hint: String = ""): Nothing =
    throw MillpondError.of("INVALID_OPTION",
      s"the option ${Options.prefix}$option = '$text' $why.",
      if (hint.nonEmpty) hint else "Write a time as in 90s, 30min, 24h or 7d.")

  private def milliseconds(option: String, text: String, of: String): Long = {
    val time = """([+-]?\d+)\s*(ms|s|min|m|h|d)""".r
    val ms = of.trim.toLowerCase(Locale.ROOT) match {
      case time(number, unit) =>
        val scale = unit match {
          case "ms" => TimeUnit.MILLISECONDS
          case "s" => TimeUnit.SECONDS
          case "h" => TimeUnit.HOURS
          case "d" => TimeUnit.DAYS
          case _ => TimeUnit.MINUTES
        }
        Try(number.toLong).map(scale.toMillis).getOrElse(TtlOptions.MostMs + 1)
      case _ => invalid(option, text, s"has '$of', which is no time")
    }
    if (ms <= 0) invalid(option, text, "has a time to live that is not above zero",
        "Leave the option out to let rows stay; or set the operator's to off.")
    if (ms < TtlOptions.LeastMs)
      invalid(option, text, "has a time to live below a second: ages count in seconds")
    if (ms > TtlOptions.MostMs) invalid(option, text, "has a time to live above 100 years")
    triggerMs.filter(_ > ms).foreach(every =>
      invalid(option, text,
        s"has a time to live that is shorter than the query's trigger of $every ms: all rows " +
          "would end with the next batch",
        "Set a longer time to live, or a shorter trigger."))
    ms
  }

  /** The time to live by operator, in milliseconds. */
  def resolve(operators: Seq[TtlOperator]): Map[Long, Long] = {
    if (realTime)
      throw MillpondError.of("UNSUPPORTED",
        "a query in real-time mode can have no time to live: its batches last long, and rows end " +
          "only between two of them.",
        "Unset ttl and ttl.operators, or use another trigger.")
    val usual = default.map(milliseconds("ttl", default.get, _))
    val chosen = listed.toSeq.flatMap(of(_, operators)).toMap
    val option = (operator: TtlOperator) =>
      if (chosen.contains(operator.id.toString) || chosen.contains(operator.name)) "ttl.operators"
      else "ttl"
    operators.flatMap { operator =>
      val mine = chosen.getOrElse(operator.id.toString, chosen.getOrElse(operator.name, usual))
      for { _ <- mine; why <- operator.refused } {
        val name = option(operator)
        invalid(name, (if (name == "ttl") default else listed).get,
          s"gives operator ${operator.id} (${operator.name}) a time to live, which it cannot " +
            s"have: $why",
          s"Leave this operator out: ${Options.prefix}ttl.operators=${operator.id}=off.")
      }
      mine.map(operator.id -> _)
    }.toMap
  }

  /** What is written for each number or name; None: off. */
  private def of(text: String, operators: Seq[TtlOperator]): Seq[(String, Option[Long])] = {
    def invalidList(why: String): Nothing = invalid("ttl.operators", text, why,
      "Write operators with their times, as in 0=24h,dedupe=7d,2=off.")
    val entries = text.split(',').toSeq.map(_.trim.split("=", -1).map(_.trim)).map {
      case Array(name, time) if name.nonEmpty => name -> time
      case other => invalidList(s"has '${other.mkString("=")}', which is no operator with a time")
    }
    entries.map(_._1).diff(entries.map(_._1).distinct).headOption.foreach(name =>
      invalidList(s"names $name twice"))
    entries.map { case (name, time) =>
      if (!operators.exists(o => o.id.toString == name || o.name == name))
        invalid("ttl.operators", text, s"names the operator $name, which the query does not have",
          s"It has: ${operators.map(o => s"${o.id} (${o.name})").mkString(", ")}.")
      name -> (if (time.toLowerCase(Locale.ROOT) == "off") None
               else Some(milliseconds("ttl.operators", text, time)))
    }
  }
}

private object TtlOptions {
  val LeastMs = 1000L
  val MostMs: Long = TimeUnit.DAYS.toMillis(36500)
}

/** Tells the tasks of a stateful operator about its time to live. Not by a property of the job: a
  * thread of `foreachBatch` that is older than the batch would have an older one. */
private[millpond] final case class TtlExec(ttls: BatchTtls, child: SparkPlan)
    extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering
  override protected def doExecute(): RDD[InternalRow] = {
    val told = ttls
    new ToldRDD(child.execute(), () => TimeToLive.enter(told))
  }
  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan =
    copy(child = newChild)
}
