package org.apache.spark.sql.millpond.tools

import java.util.{Collection => JCollection, List => JList, Map => JMap, Properties}
import java.util.concurrent.ExecutionException

import scala.jdk.CollectionConverters._
import scala.language.reflectiveCalls
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.{
  HasStreamingSourceIdentifyingName, StreamingRelationV2, UserProvided
}
import org.apache.spark.sql.classic.DataStreamWriter
import org.apache.spark.sql.millpond.base.Json
import org.apache.spark.util.Utils

/** Asks Kafka's brokers what topics a query would find. `millpond savepoint plan` and `restore`
  * call it by py4j.
  *
  * It uses the Kafka client of the connector, and the options of the query's own sources. The shim
  * is compiled without that client, so every call of it is by reflection. */
object KafkaTopics {
  private val Servers = "bootstrap.servers"
  private val Prefix = "kafka."
  private val Version =
    "/META-INF/maven/org.apache.spark/spark-sql-kafka-0-10_2.13/pom.properties"
  // A person waits for the answer. Kafka's own limit is a minute.
  private val Limits = Map("request.timeout.ms" -> "10000", "default.api.timeout.ms" -> "15000")

  // What this uses of Kafka's classes.
  private type Future = { def get(): AnyRef }
  private type Admin = AutoCloseable {
    def listTopics(): { def names(): Future }
    def describeTopics(names: JCollection[String]): {
      def topicNameValues(): JMap[String, AnyRef]
    }
    def listOffsets(asked: JMap[AnyRef, AnyRef]): { def all(): Future }
  }
  private type Description = { def partitions(): JList[{ def partition(): Int }] }
  private type Partition = { def topic(): String; def partition(): Int }
  private type Found = { def offset(): Long }

  /** The sources of a query that read Kafka, as JSON: number, name, servers, the versions of the
    * connector and of Spark; and for each topic that the source reads or that is named, by
    * partition the first offset and the one behind the last.
    * `read` are the topics and partitions that the source reads; a topic without partitions is not
    * there. Instead of the topics `error`, if the broker did not answer.
    *
    * @param named JSON: more topics, by name */
  def describe(writer: DataStreamWriter[_], named: String): String = {
    val out = Json.obj()
    val found = out.putArray("sources")
    val more = Json.parse(named).elements.asScala.map(_.asText).toSet
    JobRun.sources(JobPlan.dataOf(writer).queryExecution.analyzed).zipWithIndex.foreach {
      case (leaf, number) =>
        val options = optionsOf(leaf)
        options.get(Prefix + Servers).foreach { servers =>
          val one = found.addObject().put("source", number).put("name", nameOf(leaf))
            .put("servers", servers).put("connector", versionOf(leaf)).put("spark", SPARK_VERSION)
          // A client of another version may lack what is called here: that is a LinkageError.
          try ask(options, more, one)
          catch { case e @ (NonFatal(_) | _: LinkageError) => one.put("error", reason(e)); () }
        }
    }
    Json.text(out)
  }

  private def ask(options: Map[String, String], named: Set[String], out: ObjectNode): Unit = {
    val admin = connect(options.collect {
      case (name, value) if name.startsWith(Prefix) => name.stripPrefix(Prefix) -> value
    })
    try {
      val read = subscribed(options, admin)
      val partitions = admin.describeTopics((read.keySet ++ named).toSeq.asJava).topicNameValues()
        .asScala.map { case (topic, answer) => topic -> partitionsOf(answer.asInstanceOf[Future]) }
      val asked = for ((topic, numbers) <- partitions.toSeq; n <- numbers) yield partition(topic, n)
      val first = offsets(admin, asked, "earliest")
      val last = offsets(admin, asked, "latest")
      val topics = out.putObject("topics")
      partitions.foreach { case (topic, numbers) =>
        val one = topics.putObject(topic)
        numbers.foreach { n =>
          one.putArray(n.toString).add(first(topic -> n)).add(last(topic -> n))
        }
      }
      val reads = out.putObject("read")
      read.foreach { case (topic, chosen) =>
        val one = reads.putArray(topic)
        chosen.getOrElse(partitions.getOrElse(topic, Nil)).foreach(n => one.add(n))
      }
    } finally admin.close()
  }

  /** The topics that a source reads; of each all partitions, or some. */
  private def subscribed(
      options: Map[String, String], admin: Admin): Map[String, Option[Seq[Int]]] = {
    val listed = options.get("subscribe").toSeq.flatMap(_.split(",")).map(_.trim)
    val pattern = options.get("subscribepattern").map(_.trim.r)
    val matching = pattern.toSeq.flatMap { wanted =>
      admin.listTopics().names().get().asInstanceOf[JCollection[String]].asScala
        .filter(wanted.matches(_))
    }
    val assigned = options.get("assign").toSeq.flatMap { text =>
      Json.parse(text).properties.asScala.map(one =>
        one.getKey -> Some(one.getValue.elements.asScala.map(_.asInt).toSeq))
    }
    (listed ++ matching).filter(_.nonEmpty).map(_ -> None).toMap ++ assigned
  }

  /** The partitions of a topic; none if it is not there. */
  private def partitionsOf(answer: Future): Seq[Int] =
    try answer.get().asInstanceOf[Description].partitions().asScala.map(_.partition()).toSeq
    catch {
      case e: ExecutionException
        if e.getCause.getClass.getSimpleName == "UnknownTopicOrPartitionException" => Nil
    }

  private def offsets(admin: Admin, asked: Seq[AnyRef], which: String): Map[(String, Int), Long] = {
    val spec = load("org.apache.kafka.clients.admin.OffsetSpec").getMethod(which).invoke(null)
    admin.listOffsets(asked.map(_ -> spec).toMap.asJava).all().get()
      .asInstanceOf[JMap[AnyRef, AnyRef]].asScala.map { case (at, found) =>
        val partition = at.asInstanceOf[Partition]
        (partition.topic(), partition.partition()) -> found.asInstanceOf[Found].offset()
      }.toMap
  }

  private def partition(topic: String, number: Int): AnyRef =
    load("org.apache.kafka.common.TopicPartition")
      .getConstructor(classOf[String], Integer.TYPE)
      .newInstance(topic, Integer.valueOf(number)).asInstanceOf[AnyRef]

  /** A client that may do what the source may. */
  private def connect(options: Map[String, String]): Admin = {
    // The connector's own: it adds the delegation token that Spark has obtained, if any.
    val updater = load("org.apache.spark.kafka010.KafkaConfigUpdater")
      .getConstructor(classOf[String], classOf[Map[_, _]])
      .newInstance("source", Limits ++ options)
      .asInstanceOf[{
          def setAuthenticationConfigIfNeeded(): AnyRef
          def build(): JMap[String, Object]
        }]
    updater.setAuthenticationConfigIfNeeded()
    load("org.apache.kafka.clients.admin.Admin").getMethod("create", classOf[JMap[_, _]])
      .invoke(null, updater.build()).asInstanceOf[Admin]
  }

  private def load(name: String): Class[_] = Utils.classForName[AnyRef](name)

  private def optionsOf(leaf: LogicalPlan): Map[String, String] = leaf match {
    case r: StreamingRelationV2 => r.extraOptions.asScala.toMap // by lower case
    case _ => Map.empty
  }

  /** The version of the connector, which is that of the Spark that it was made for; empty if its
    * jar does not say. */
  private def versionOf(leaf: LogicalPlan): String = leaf match {
    case r: StreamingRelationV2 =>
      Option(r.table.getClass.getResourceAsStream(Version)).fold("") { in =>
        val said = new Properties
        try said.load(in)
        finally in.close()
        said.getProperty("version", "")
      }
    case _ => ""
  }

  private def nameOf(leaf: LogicalPlan): String = leaf match {
    case r: HasStreamingSourceIdentifyingName =>
      r.sourceIdentifyingName match { case UserProvided(name) => name; case _ => "" }
    case _ => ""
  }

  /** Kafka says why in the innermost error. */
  private def reason(e: Throwable): String = {
    val last = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).toSeq.last
    s"${last.getClass.getSimpleName}: ${last.getMessage}"
  }
}
