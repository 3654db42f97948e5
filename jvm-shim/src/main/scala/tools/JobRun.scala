package org.apache.spark.sql.millpond.tools

import java.util.{Map => JMap}

import org.apache.spark.sql.{DataFrame, Dataset => AnyDataset}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Alias, Attribute, Cast}
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull
import org.apache.spark.sql.catalyst.plans.logical.{LeafNode, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.streaming.{
  HasStreamingSourceIdentifyingName, StreamingRelationV2
}
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.classic.{Dataset, DataStreamWriter, SparkSession}
import org.apache.spark.sql.execution.datasources.FileFormat
import org.apache.spark.sql.execution.streaming.{Offset, OneTimeTrigger, Source}
import org.apache.spark.sql.execution.streaming.runtime.{
  LongOffset, StreamingExecutionRelation, StreamingRelation
}
import org.apache.spark.sql.millpond.base.Json
import org.apache.spark.sql.streaming.{OutputMode, StreamingQuery}
import org.apache.spark.sql.types._

/** Runs one batch of a streaming query over given rows and reads no source. `millpond.bootstrap`
  * calls it by py4j.
  *
  * Sources are numbered as in Spark's offset log: by their places in the plan. A source that is in
  * the plan twice has two numbers; rows are given for the lower one. */
object JobRun {

  /** The sources of a query as JSON, and whether rows fit: name, number of the first that is equal,
    * whether it keeps a log of files, whether rows can take its place, columns (name, type), and
    * of rows that are given the columns that are missing, doubtful, or of a type that another
    * value might come from. */
  def describe(writer: DataStreamWriter[_], rows: JMap[Integer, AnyDataset[_]]): String = {
    val session = JobPlan.dataOf(writer).sparkSession
    val leaves = sources(JobPlan.dataOf(writer).queryExecution.analyzed)
    val out = Json.obj()
    val found = out.putArray("sources")
    leaves.zipWithIndex.foreach { case (leaf, number) =>
      val one = found.addObject().put("name", nameOf(leaf)).put("same_as", leaves.indexOf(leaf))
        .put("files", keepsFiles(leaf))
        .put("replaceable", leaf.isInstanceOf[HasStreamingSourceIdentifyingName])
      val columns = one.putArray("columns")
      leaf.output.foreach(a => columns.addObject().put("name", a.name).put("type", a.dataType.sql))
      Option(rows.get(Integer.valueOf(number))).foreach { data =>
        val misfits = one.putArray("misfits")
        leaf.output.foreach(to =>
          misfit(matches(session, data, to), to).foreach(why => misfits.add(s"${to.name} ($why)")))
      }
    }
    Json.text(out)
  }

  /** Start the query with a Spark checkpoint at `checkpoint` and without a sink. It ends after
    * batch 0, whose input is `rows`. */
  def start(writer: DataStreamWriter[_], rows: JMap[Integer, AnyDataset[_]], checkpoint: String)
      : StreamingQuery = {
    val data = JobPlan.dataOf(writer)
    val session = data.sparkSession
    val plan = data.queryExecution.analyzed
    val replaced = sources(plan).zipWithIndex.distinctBy(_._1).map { case (leaf, number) =>
      leaf -> new RowsSource(session, leaf.output, Option(rows.get(Integer.valueOf(number))))
    }.toMap
    val query = plan.transform {
      // Spark takes a relation of an opened source as it is, and opens the others.
      case leaf: LogicalPlan with HasStreamingSourceIdentifyingName if replaced.contains(leaf) =>
        StreamingExecutionRelation(replaced(leaf), leaf.output, None, leaf.sourceIdentifyingName)(
          session)
    }
    val once = Dataset.ofRows(session, query).writeStream.format("noop").outputMode(
      JobPlan.field(writer, "outputMode").asInstanceOf[OutputMode])
    // No other trigger is sure to run one batch: timers of processing time ask for the next.
    once.trigger(OneTimeTrigger).option("checkpointLocation", checkpoint).start()
  }

  private[tools] def sources(plan: LogicalPlan): Seq[LogicalPlan] = plan.collect {
    case leaf: LeafNode if leaf.isStreaming => leaf
  }

  private def nameOf(leaf: LogicalPlan): String = leaf match {
    case r: StreamingRelation => r.sourceName
    case r: StreamingRelationV2 => r.sourceName
    case other => other.nodeName
  }

  private def keepsFiles(leaf: LogicalPlan): Boolean = leaf match {
    case r: StreamingRelation => classOf[FileFormat].isAssignableFrom(r.dataSource.providingClass)
    case _ => false
  }

  private def matches(session: SparkSession, data: AnyDataset[_], to: Attribute): Seq[Attribute] = {
    val same = session.sessionState.conf.resolver
    data.asInstanceOf[Dataset[_]].queryExecution.analyzed.output.filter(a => same(a.name, to.name))
  }

  private def misfit(found: Seq[Attribute], to: Attribute): Option[String] = found match {
    case Seq() => Some("missing")
    case Seq(from) if fits(from.dataType, to.dataType) => None
    case Seq(from) => Some(s"is ${from.dataType.sql}, not ${to.dataType.sql}")
    case _ => Some(s"is there ${found.size} times")
  }

  /** Whether every value of one type is one of the other, and no null comes where none may
    * be. Narrower than what Spark calls an up-cast, which makes a time of a number, a time with
    * a zone of one without, and a text of anything. */
  private def fits(from: DataType, to: DataType): Boolean = (from, to) match {
    case (NullType, _) => true
    case (a, b) if DataType.equalsIgnoreCompatibleNullability(a, b) => true
    case (a: IntegralType, b @ (FloatType | DoubleType)) => a.defaultSize < b.defaultSize
    case (a: NumericType, b: NumericType) => Cast.canUpCast(a, b)
    case (TimestampType | TimestampNTZType, _) => false // nobody can know of which zone it is
    case (a: DatetimeType, b: DatetimeType) => Cast.canUpCast(a, b)
    case (_: StringType, _: StringType) => true
    case (ArrayType(a, nulls), ArrayType(b, may)) => fits(a, b) && (may || !nulls)
    case (MapType(ka, va, nulls), MapType(kb, vb, may)) =>
      fits(ka, kb) && fits(va, vb) && (may || !nulls)
    case (StructType(as), StructType(bs)) =>
      as.length == bs.length && as.zip(bs).forall { case (a, b) =>
        a.name == b.name && fits(a.dataType, b.dataType) && (b.nullable || !a.nullable)
      }
    case _ => false
  }

  /** A source that has one batch. */
  private final class RowsSource(session: SparkSession, output: Seq[Attribute],
      rows: Option[AnyDataset[_]]) extends Source {
    override def schema: StructType = DataTypeUtils.fromAttributes(output)
    // Also without rows: state and watermark begin with a batch.
    override def getOffset: Option[Offset] = Some(LongOffset(0))

    /** Read by the tasks of the batch. */
    override def getBatch(start: Option[Offset], end: Offset): DataFrame = {
      val batch = rows.fold(session.sparkContext.emptyRDD[InternalRow]) { data =>
        val columns = output.map { to =>
          val from = matches(session, data, to).head
          val cast = if (from.dataType == to.dataType) from else Cast(from, to.dataType)
          Alias(if (from.nullable && !to.nullable) AssertNotNull(cast, Seq(to.name)) else cast,
            to.name)()
        }
        Dataset.ofRows(session,
          Project(columns,
            data.asInstanceOf[Dataset[_]].queryExecution.analyzed)).queryExecution.toRdd
      }
      session.internalCreateDataFrame(batch, schema, isStreaming = true)
    }

    override def stop(): Unit = ()
    override def toString: String = "rows"
  }
}
