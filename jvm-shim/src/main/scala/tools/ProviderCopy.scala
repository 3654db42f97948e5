package org.apache.spark.sql.millpond.tools

import java.io.{BufferedReader, InputStreamReader, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID
import java.util.concurrent.{
  Callable, ExecutionException, ExecutorCompletionService, Executors, TimeUnit
}
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.{SparkConf, SparkContext, SparkThrowable}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{
  Json, KeyPlacement, MillpondError, MillpondException, PlacedStore
}
import org.apache.spark.sql.millpond.rows.FamilyDefinition
import org.apache.spark.sql.types.{DataType, StructType}

/** Copies stores from one state store provider to another, row by row through Spark's
  * contract. So it needs to know neither format. `millpond adopt` and `millpond release` run it
  * in a JVM of their own.
  *
  * It reads one line of JSON, which `millpond.operations.migrate.copying` writes. It writes a line
  * for every copied store, and one for the end or the error. The JVM ends when its standard input
  * does: then nobody reads the answer. */
object ProviderCopy {
  private val EndMs = 10000L

  /** One column family of a store. */
  private final class Column(node: JsonNode) {
    val name: String = node.get("name").asText
    val key: StructType = schema(node.get("key"))
    val value: StructType = schema(node.get("value"))
    val multi: Boolean = node.get("multi").asBoolean
    val internal: Boolean = node.get("internal").asBoolean
    val spec: KeyStateEncoderSpec = {
      val how = node.get("spec")
      how.get("kind").asText match {
        case "point" => NoPrefixKeyStateEncoderSpec(key)
        case "prefix" => PrefixKeyScanStateEncoderSpec(key, how.get("prefix_columns").asInt)
        case "range" =>
          RangeKeyScanStateEncoderSpec(key, how.get("ordinals").elements.asScala.map(_.asInt).toSeq)
        case "time-first" => TimestampAsPrefixKeyStateEncoderSpec(key)
        case "time-last" => TimestampAsPostfixKeyStateEncoderSpec(key)
      }
    }
    private def schema(text: JsonNode): StructType =
      DataType.fromJson(text.asText).asInstanceOf[StructType]
    def definition: FamilyDefinition = FamilyDefinition(key, value, spec, internal, multi)
  }

  /** Schemas by id, for state in Avro, which Spark's driver broadcasts to its tasks. */
  private final class FileSchemas(metadata: StateSchemaMetadata) extends StateSchemaProvider {
    override def getSchemaMetadataValue(key: StateSchemaMetadataKey): StateSchemaMetadataValue =
      metadata.activeSchemas(key)
    override def getCurrentStateSchemaId(colFamilyName: String, isKey: Boolean): Short =
      metadata.activeSchemas.keys.filter(k =>
        k.colFamilyName == colFamilyName && k.isKey == isKey).map(_.schemaId).max
  }

  /** `stopped`: when it is set, copies that have not begun to commit end, and write nothing. */
  private final class Copier(request: JsonNode, hadoop: Configuration, stopped: AtomicBoolean) {
    private val format = request.get("checkpoint_format").asInt
    private val runId = UUID.randomUUID

    /** Rows copied, and the id of the version that was written, if versions have ids. */
    def copy(store: JsonNode): JsonNode = {
      goOn()
      val columns = store.get("families").elements.asScala.map(new Column(_)).toSeq
      val version = store.get("version").asLong
      val source = open("source", store, columns)
      try {
        val chosen = Option(store.get("id")).filterNot(_.isNull).map(_.asText)
        val families =
          if (usesFamilies(store)) named(columns).map(c => c.name -> c.definition) else Nil
        def read(work: ReadStateStore => JsonNode): JsonNode = {
          val reader = StateReading.open(source, version, chosen, families)
          try work(reader)
          finally reader.release()
        }
        if (request.get("count_only").asBoolean) read(count(_, store, columns))
        else {
          val target = open("target", store, columns)
          try read(write(_, target, store, columns, version))
          finally target.close()
        }
      } finally source.close()
    }

    private def goOn(): Unit =
      if (stopped.get) throw new InterruptedException("the copy is stopped")

    /** What a copy would read: rows, and the bytes of their keys and values. */
    private def count(reader: ReadStateStore, store: JsonNode, columns: Seq[Column]): JsonNode = {
      val present = if (usesFamilies(store)) there(reader, columns, store) else columns
      var rows, bytes = 0L
      present.foreach { c =>
        val pairs = pairsOf(reader, c)
        try pairs.foreach { pair =>
            goOn()
            rows += 1
            bytes += pair.key.getSizeInBytes + pair.value.getSizeInBytes
          }
        finally pairs.close()
      }
      answer(store, rows).put("bytes", bytes)
    }

    private def answer(store: JsonNode, rows: Long): ObjectNode =
      Json.obj().put("operator", store.get("operator").asLong)
        .put("partition", store.get("partition").asInt)
        .put("store", store.get("store").asText).put("rows", rows)

    private def write(reader: ReadStateStore, target: StateStoreProvider, store: JsonNode,
        columns: Seq[Column], version: Long): JsonNode = {
      // the target is empty at any version: only providers that can load an empty
      // version are asked to
      val fromNothing = request.get("target").get("load_empty").asBoolean
      val writer = if (fromNothing)
        target.getStore(version - 1, None, forceSnapshotOnCommit = false, loadEmpty = true)
      else target.getStore(0)
      try {
        if (store.get("placement_unknown").asBoolean) writer match {
          case ours: PlacedStore =>
            ours.place(KeyPlacement.Unknown(lossy = store.get("made_by_pandas").asBoolean))
          case _ =>
        }
        val present = if (usesFamilies(store)) there(reader, columns, store) else columns
        var rows = 0L
        present.foreach { c =>
          if (usesFamilies(store))
            writer.createColFamilyIfAbsent(c.name, c.key, c.value, c.spec, c.multi, c.internal)
          rows += copyRows(reader, writer, c)
        }
        goOn()
        writer.commit()
        val id = writer.getStateStoreCheckpointInfo().stateStoreCkptId
        if (!fromNothing) nameSnapshot(store, version)
        val out = answer(store, rows)
        if (format > 1)
          out.put("id",
            id.getOrElse(throw MillpondError.internal("a version was written without an id")))
        out
      } finally if (!writer.hasCommitted) writer.abort()
    }

    /** The families of the store. Fails if the schema files lack one: the copy would
      * lose it in silence. */
    private def there(
        reader: ReadStateStore, columns: Seq[Column], store: JsonNode): Seq[Column] = {
      val names = reader.allColumnFamilyNames - StateStore.DEFAULT_COL_FAMILY_NAME
      val unknown = names -- columns.map(_.name)
      if (unknown.nonEmpty)
        throw MillpondError.of(
          "FORMAT_DAMAGED",
          s"store ${store.get("operator")}/${store.get("partition")} has column families " +
            "that its schema files do not describe: " +
            s"${unknown.toSeq.sorted.mkString(", ")}."
        )
      named(columns).filter(c => names.contains(c.name))
    }

    /** The default family is left out: an operator with column families neither
      * makes nor uses it. */
    private def named(columns: Seq[Column]): Seq[Column] =
      columns.filter(_.name != StateStore.DEFAULT_COL_FAMILY_NAME)

    private def pairsOf(reader: ReadStateStore, c: Column): StateStoreIterator[UnsafeRowPair] =
      if (c.multi) reader.iteratorWithMultiValues(c.name) else reader.iterator(c.name)

    private def copyRows(reader: ReadStateStore, writer: StateStore, c: Column): Long = {
      var rows = 0L
      var last: UnsafeRow = null
      val pairs = pairsOf(reader, c)
      try {
        while (pairs.hasNext) {
          goOn()
          val pair = pairs.next()
          // values of one key follow one another
          if (c.multi && last != null && last == pair.key)
            writer.merge(pair.key, pair.value, c.name)
          else {
            writer.put(pair.key, pair.value, c.name)
            if (c.multi) last = pair.key.copy()
          }
          rows += 1
        }
      } finally pairs.close()
      rows
    }

    /** Spark's HDFS-backed provider can only begin with version 0. The delta of its first version
      * holds every row, so its bytes are those of a snapshot of any version. */
    private def nameSnapshot(store: JsonNode, version: Long): Unit = {
      val dir = StateStoreId(root("target"), store.get("operator").asLong,
        store.get("partition").asInt, store.get("store").asText).storeCheckpointLocation()
      val fs = dir.getFileSystem(hadoop)
      val named = new Path(dir, s"$version.snapshot")
      if (!fs.rename(new Path(dir, "1.delta"), named))
        throw MillpondError.of("STORAGE_UNAVAILABLE", s"$named could not be written.")
    }

    private def root(side: String): String = request.get(side).get("root").asText
    private def usesFamilies(store: JsonNode): Boolean = store.get("uses_families").asBoolean

    private def open(side: String, store: JsonNode, columns: Seq[Column]): StateStoreProvider = {
      val sql = new SQLConf
      Seq(request.get("conf"), request.get(side).get("conf")).foreach(
        _.properties.asScala.foreach(e => sql.setConfString(e.getKey, e.getValue.asText)))
      sql.setConfString(SQLConf.STATE_STORE_PROVIDER_CLASS.key,
        request.get(side).get("provider").asText)
      sql.setConfString(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key, format.toString)
      sql.setConfString(SQLConf.STATE_STORE_COMMIT_VALIDATION_ENABLED.key, "false")
      val own = new Configuration(hadoop)
      sql.getAllConfs.foreach { case (k, v) => own.set(k, v) }
      val first = columns.head
      val spec = if (usesFamilies(store)) NoPrefixKeyStateEncoderSpec(first.key) else first.spec
      val files = store.get("schema_files").elements.asScala.map(_.asText).toList
      val schemas = if (files.isEmpty) None
      else Some(new FileSchemas(StateSchemaMetadata.createStateSchemaMetadata(root("source"),
            hadoop, files)))
      val id = StateStoreId(root(side), store.get("operator").asLong, store.get("partition").asInt,
        store.get("store").asText)
      StateStoreProvider.createAndInit(StateStoreProviderId(id, runId), first.key, first.value,
        spec, usesFamilies(store), new StateStoreConf(sql), own, useMultipleValuesPerKey = false,
        schemas)
    }
  }

  /** Returns, or throws, when no copy is at work any more: what one wrote later nobody would
    * clear away. */
  private def copyAll(request: JsonNode, hadoop: Configuration, stopped: AtomicBoolean)(
      answer: JsonNode => Unit): Unit = {
    val copier = new Copier(request, hadoop, stopped)
    val pool = Executors.newFixedThreadPool(request.get("threads").asInt)
    try {
      val done = new ExecutorCompletionService[JsonNode](pool)
      val stores = request.get("stores").elements.asScala.toSeq
      stores.foreach(s => done.submit((() => copier.copy(s)): Callable[JsonNode]))
      stores.foreach(_ => answer(done.take().get()))
    } finally {
      stopped.set(true)
      pool.shutdownNow(): Unit
      while (!pool.awaitTermination(1, TimeUnit.MINUTES)) ()
    }
  }

  /** The same in the JVM of a running session, by py4j, with its access to storage. */
  final class InSession {
    private val stopped = new AtomicBoolean

    /** Returns all answers. */
    def run(request: String): String = {
      val answers = Json.obj().putArray("answers")
      val hadoop = SparkContext.getOrCreate().hadoopConfiguration
      try copyAll(Json.parse(request), hadoop, stopped) { a =>
          answers.add(a)
          ()
        }
      catch {
        case e: LinkageError => answers.add(failure(e)); ()
        case NonFatal(e) => answers.add(failure(e)); ()
      }
      Json.text(answers)
    }

    /** Let `run` end soon, from another thread. If it has not begun, it does nothing. */
    def stop(): Unit = stopped.set(true)
  }

  def inSession(): InSession = new InSession

  private def run(request: JsonNode, out: PrintStream): Unit = {
    val conf =
      new SparkConf().setMaster("local[1]").setAppName("millpond").set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    request.get("spark_conf").properties.asScala.foreach(e => conf.set(e.getKey, e.getValue.asText))
    val context = new SparkContext(conf)
    context.setLogLevel("ERROR")
    try {
      StateStoreCoordinatorRef.forDriver(context.env, new SQLConf)
      copyAll(request, context.hadoopConfiguration, new AtomicBoolean)(a =>
        out.println(Json.text(a)))
    } finally context.stop()
    out.println("""{"done":true}""")
  }

  private def failure(e: Throwable): JsonNode = {
    val chain = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(20).filterNot(
      _.isInstanceOf[ExecutionException]).toSeq
    val error = Json.obj()
    chain.collectFirst { case m: MillpondException => m } match {
      case Some(m) => error.put("kind", m.kind).put("message", m.getMessage).put("hint", m.hint)
      case None =>
        val condition =
          chain.collectFirst { case t: SparkThrowable if t.getCondition != null => t.getCondition }
        condition.foreach(error.put("condition", _))
        error.put("message",
          chain.map(x => s"${x.getClass.getSimpleName}: ${x.getMessage}").distinct.mkString("; "))
    }
    Json.obj().set[JsonNode]("error", error)
  }

  private def daemon(name: String)(work: => Unit): Unit = {
    val thread = new Thread(() => work, name)
    thread.setDaemon(true)
    thread.start()
  }

  def main(args: Array[String]): Unit = {
    val out = new PrintStream(System.out, true, UTF_8)
    System.setOut(System.err) // nothing else may write between the answers
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    val request = Json.parse(in.readLine())
    daemon("millpond-end-of-input") {
      while (in.read() >= 0) ()
      // a running copy could delay an orderly exit
      daemon("millpond-halt") { Thread.sleep(EndMs); Runtime.getRuntime.halt(3) }
      System.exit(3) // local files are deleted
    }
    val code =
      try { run(request, out); 0 }
      catch {
        case e: LinkageError => out.println(Json.text(failure(e))); 1
        case NonFatal(e) => out.println(Json.text(failure(e))); 1
      }
    System.exit(code)
  }
}
