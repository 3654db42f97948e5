/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.io.{BufferedReader, InputStreamReader, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID
import java.util.concurrent.{ExecutionException, FutureTask}

import scala.collection.concurrent.TrieMap
import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{ArrayNode, JsonNodeFactory, ObjectNode}
import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkConf, SparkContext, SparkThrowable, TaskContext}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.ImplicitGroupingKeyTracker
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/** 
  * Drives any `StateStoreProvider` through Spark's contract, without a query.
  *
  * One line of JSON in (`[{"do": ..., ...}, ...]`), one line out (a list of `{"ok": ...}` or
  * `{"error": ...}` of the same length). A failed command does not stop the later ones. The
  * JVM serves many examples. The client picks names for providers, stores and iterators. `run`
  * has the commands. */
object ProviderHarness {
  import Arguments._
  import RowCodecs._
  private val json = new ObjectMapper
  private val nodes = JsonNodeFactory.instance

  private final class Opened(val provider: StateStoreProvider, val run: UUID, val key: Codec,
      val value: Codec, val spec: JsonNode) {
    val families = mutable.Map.empty[String, (Codec, Codec, Codec)]
    families("default") = (key, value, prefixCodec(key.schema, spec))
  }
  private final class Store(val owner: Opened, val read: ReadStateStore) {
    def write: StateStore = read match {
      case w: StateStore => w
      case _ => throw new IllegalArgumentException("a read store was asked to write")
    }
    def family(c: JsonNode): (String, Codec, Codec, Codec) = {
      val name = text(c, "cf", "default")
      val (k, v, p) = owner.families.getOrElse(name, owner.families("default"))
      // A faulty operator may give rows of another schema than the family's.
      def other(field: String, mine: Codec) =
        if (c.hasNonNull(field)) codecOf(text(c, field)) else mine
      (name, other("as_key", k), other("as_value", v), p)
    }
  }
  /** `prefix` encodes the row that a reusable iterator seeks. */
  private final class Cursor(val it: StateStoreIterator[UnsafeRowPair], val store: Store,
      val cf: String, val key: Codec, val value: Codec, val reusable: AnyRef, val prefix: Codec)

  /** Calls a method of Spark 4.3's contract. If the provider lacks it, does what 4.2 does. */
  private def ifThere(provider: StateStoreProvider, method: String)(otherwise: => Unit): Unit =
    provider.getClass.getMethods.find(_.getName == method).fold(otherwise) { m =>
      try { m.invoke(provider); () }
      catch { case e: java.lang.reflect.InvocationTargetException => throw e.getCause }
    }

  /** Task attempts by name. A command with `task` runs as a part of that attempt.
    * `end_task` ends the attempt. */
  private val tasks = mutable.Map.empty[String, TaskContext]
  private def asTask[T](c: JsonNode)(work: => T): T = if (!c.hasNonNull("task")) work
  else {
    val context = tasks.getOrElseUpdate(text(c, "task"), TaskContext.empty())
    // as Spark's for all tasks of a query
    if (flag(c, "of_run"))
      context.getLocalProperties.setProperty("spark.jobGroup.id", provider(c).run.toString): Unit
    TaskContext.setTaskContext(context)
    try work
    finally TaskContext.unset()
  }

  /** Calls of user code by name, as of `transformWithState`: each has a grouping key that is an
    * object of its own. A command with `user_call` runs as a part of that call. */
  private val userCalls = TrieMap.empty[String, AnyRef]
  private def asUserCall[T](c: JsonNode)(work: => T): T = if (!c.hasNonNull("user_call")) work
  else {
    ImplicitGroupingKeyTracker.setImplicitKey(
      userCalls.getOrElseUpdate(text(c, "user_call"), new Object))
    try work
    finally ImplicitGroupingKeyTracker.removeImplicitKey()
  }

  @volatile private var meanwhile: ArrayNode = null
  /** Commands that run beside the others, by name. A command with `beside` begins, and gets its
    * answer at once. `join` waits for its result. */
  private val beside = TrieMap.empty[String, (Thread, FutureTask[JsonNode])]
  private def perhapsBeside(c: JsonNode)(work: => JsonNode): JsonNode = if (!c.hasNonNull("beside"))
    work
  else {
    val task = new FutureTask[JsonNode](() => work)
    val thread = new Thread(task, text(c, "beside"))
    thread.setDaemon(true)
    thread.start()
    beside(text(c, "beside")) = (thread, task)
    nodes.nullNode
  }

  private val providers = TrieMap.empty[String, Opened]
  private val stores = TrieMap.empty[String, Store]
  private val cursors = TrieMap.empty[String, Cursor]

  private[testing] def providerOf(name: String): StateStoreProvider = providers(name).provider
  private[testing] def allProviders: Seq[StateStoreProvider] =
    providers.values.map(_.provider).toSeq
  private[testing] def storesOf(provider: StateStoreProvider): Seq[ReadStateStore] =
    stores.values.filter(_.owner.provider eq provider).map(_.read).toSeq
  private[testing] def storeOf(name: String): ReadStateStore = stores(name).read

  private lazy val defaults = { val c = new Configuration; c.size; c } // read from the jars once

  private def open(c: JsonNode): JsonNode = {
    val sql = new SQLConf
    sql.setConfString(SQLConf.STATE_STORE_PROVIDER_CLASS.key, text(c, "class"))
    sql.setConfString(SQLConf.STATE_STORE_COMMIT_VALIDATION_ENABLED.key, "false")
    entries(c, "conf").foreach { case (k, v) => sql.setConfString(k, v) }
    val hadoop = new Configuration(defaults)
    sql.getAllConfs.foreach { case (k, v) => hadoop.set(k, v) }
    entries(c, "hadoop").foreach { case (k, v) => hadoop.set(k, v) }
    val key = codecOf(text(c, "key"))
    val value = codecOf(text(c, "value"))
    val spec = if (c.hasNonNull("spec")) c.get("spec") else nodes.objectNode()
    val storeId = StateStoreId(text(c, "root"), c.path("operator").asLong(0),
      c.path("partition").asInt(0), text(c, "store", "default"))
    val runId = if (c.hasNonNull("run_id")) UUID.fromString(text(c, "run_id")) else UUID.randomUUID
    val p = StateStoreProvider.createAndInit(
      StateStoreProviderId(storeId, runId),
      key.schema,
      value.schema,
      specOf(key.schema, spec),
      flag(c, "use_cf"),
      new StateStoreConf(sql),
      hadoop,
      flag(c, "multi"),
      None
    )
    providers(text(c, "p")) = new Opened(p, runId, key, value, spec)
    nodes.nullNode
  }

  private def provider(c: JsonNode): Opened =
    providers.getOrElse(text(c, "p"), throw new NoSuchElementException(s"provider in $c"))
  private def store(c: JsonNode): Store =
    stores.getOrElse(text(c, "s"), throw new NoSuchElementException(s"store in $c"))
  private def cursor(c: JsonNode): Cursor =
    cursors.getOrElse(text(c, "it"), throw new NoSuchElementException(s"iterator in $c"))

  private def keep(c: JsonNode, owner: Opened, s: ReadStateStore): JsonNode = {
    stores(text(c, "s")) = new Store(owner, s)
    nodes.nullNode
  }

  private def openScan(c: JsonNode): Cursor = {
    val s = store(c)
    val (cf, k, v, p) = s.family(c)
    def bound(name: String) = if (c.hasNonNull(name)) Some(k.encode(c.get(name))) else None
    var reusable: AnyRef = null
    val it = text(c, "scan", "all") match {
      case "values" =>
        val key = k.encode(c.get("k"))
        new StateStoreIterator(s.read.valuesIterator(key, cf).map(new UnsafeRowPair(key, _)),
          () => ())
      // A trait of Spark 4.3. Reflection, because this file also compiles for older lines.
      case "reusable" =>
        reusable = unwrapped(s.read.getClass.getMethod("reusableIterator", classOf[String]).invoke(
            s.read, cf))
        val pairs = reusable.asInstanceOf[Iterator[UnsafeRowPair]]
        new StateStoreIterator(pairs, () => reusable.asInstanceOf[java.io.Closeable].close())
      case "all" if flag(c, "multi") => s.read.iteratorWithMultiValues(cf)
      case "all" => s.read.iterator(cf)
      case "prefix" if flag(c, "multi") =>
        s.read.prefixScanWithMultiValues(p.encode(c.get("k")), cf)
      case "prefix" => s.read.prefixScan(p.encode(c.get("k")), cf)
      case "range" if flag(c, "multi") =>
        s.read.rangeScanWithMultiValues(bound("from"), bound("to"), cf)
      case "range" => s.read.rangeScan(bound("from"), bound("to"), cf)
    }
    new Cursor(it, s, cf, k, v, reusable, p)
  }

  private def unwrapped[T](call: => T): T =
    try call
    catch { case e: java.lang.reflect.InvocationTargetException => throw e.getCause }

  /** 
    * Returns up to `limit` pairs (-1: all). It reads like the strictest consumer in Spark: `next`,
    * then `hasNext`, then (with `remove`) the removal of that key, and only then the pair.
    * `lazily`: calls `hasNext` only right before `next`. Spark's RocksDB store needs that when
    * iterators and gets interleave. */
  private def read(cur: Cursor, limit: Int, remove: Boolean, lazily: Boolean): ArrayNode = {
    val rows = nodes.arrayNode()
    while ((limit < 0 || rows.size < limit) && cur.it.hasNext) {
      val pair = cur.it.next()
      if (!lazily) cur.it.hasNext
      val (key, value) = (pair.key, pair.value)
      if (remove) cur.store.write.remove(key, cur.cf)
      rows.add(nodes.arrayNode().add(cur.key.decode(key)).add(cur.value.decode(value)))
    }
    rows
  }

  /** Millpond's own. Reflection, because this file also compiles without it. */
  private lazy val followers =
    Class.forName("org.apache.spark.sql.millpond.engine.Followers$").getField("MODULE$").get(null)

  private[testing] def run(c: JsonNode): JsonNode = text(c, "do") match {
    case "open" => open(c)
    case "told" =>
      followers.getClass.getMethod("told", classOf[String]).invoke(followers, text(c, "answer"))
      nodes.nullNode
    case "followed" =>
      val at = followers.getClass
        .getMethod("versionOf", classOf[Long], classOf[Int], classOf[String])
        .invoke(followers, Long.box(0L), Int.box(c.get("partition").asInt), "default")
      nodes.numberNode(at.asInstanceOf[Long])
    case "get_store" =>
      val p = provider(c)
      keep(c, p,
        TimedBatch.during(c, p.run)(p.provider.getStore(c.get("version").longValue, id(c),
            flag(c, "force_snapshot"), flag(c, "load_empty"))))
    case "get_read_store" =>
      val p = provider(c)
      keep(c, p,
        TimedBatch.during(c, p.run)(p.provider.getReadStore(c.get("version").longValue, id(c))))
    case "upgrade" =>
      val p = provider(c)
      keep(c, p,
        TimedBatch.during(c, p.run)(p.provider.upgradeReadStoreToWriteStore(
            stores(text(c, "from")).read, c.get("version").longValue, id(c),
            flag(c, "force_snapshot"))))
    case "join" =>
      try beside.remove(text(c, "name")).get._2.get
      catch { case e: ExecutionException => throw e.getCause }
    case "waits" =>
      val state = beside(text(c, "name"))._1.getState
      nodes.booleanNode(state == Thread.State.WAITING || state == Thread.State.BLOCKED)
    case "kill_task" => tasks(text(c, "task")).markInterrupted("killed by the test"); nodes.nullNode
    case "end_task" =>
      tasks.remove(text(c, "task")).foreach(_.markTaskCompleted(None)); nodes.nullNode
    case "get" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      v.decode(s.read.get(k.encode(c.get("k")), cf))
    case "get_both" => // reads both rows after the second get, so a shared buffer shows
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      val (a, b) = (s.read.get(k.encode(c.get("k")), cf), s.read.get(k.encode(c.get("k2")), cf))
      nodes.arrayNode().add(v.decode(a)).add(v.decode(b))
    case "multi_get" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      val out = nodes.arrayNode()
      s.read.multiGet(c.get("keys").elements().asScala.map(k.encode).toArray, cf).foreach(r =>
        out.add(v.decode(r)))
      out
    case "exists" =>
      val s = store(c)
      val (cf, k, _, _) = s.family(c)
      nodes.booleanNode(s.read.keyExists(k.encode(c.get("k")), cf))
    case "values" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      val out = nodes.arrayNode()
      s.read.valuesIterator(k.encode(c.get("k")), cf).foreach(r => out.add(v.decode(r)))
      out
    case "short_list" =>
      val s = store(c)
      val (cf, k, _, _) = s.family(c)
      ShortLists.read(c, s.read, cf, k)
    case "put" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      s.write.put(k.encode(c.get("k")), v.encode(c.get("v")), cf)
      nodes.nullNode
    case "put_many" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      c.get("rows").elements().asScala.foreach(r =>
        s.write.put(k.encode(r.get(0)), v.encode(r.get(1)), cf))
      nodes.nullNode
    case "put_list" | "merge_list" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      val values = c.get("v").elements().asScala.map(v.encode).toArray
      if (text(c, "do") == "put_list") s.write.putList(k.encode(c.get("k")), values, cf)
      else s.write.mergeList(k.encode(c.get("k")), values, cf)
      nodes.nullNode
    case "put_numbered" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      NumberedRows.put(c, s.write, cf, k, v)
      nodes.nullNode
    case "check_numbered" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      nodes.numberNode(NumberedRows.check(c, s.read, cf, k, v))
    case "merge_blanks" => // a value of one long text
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      s.write.merge(k.encode(c.get("k")),
        v.encode(nodes.arrayNode().add(" " * c.get("length").intValue)), cf)
      nodes.nullNode
    case "merge" =>
      val s = store(c)
      val (cf, k, v, _) = s.family(c)
      s.write.merge(k.encode(c.get("k")), v.encode(c.get("v")), cf)
      nodes.nullNode
    case "remove" =>
      val s = store(c)
      val (cf, k, _, _) = s.family(c)
      s.write.remove(k.encode(c.get("k")), cf)
      nodes.nullNode
    case "delete_range" =>
      val s = store(c)
      val (cf, k, _, _) = s.family(c)
      s.write.deleteRange(k.encode(c.get("from")), k.encode(c.get("to")), cf)
      nodes.nullNode
    case "scan" =>
      val cur = openScan(c)
      try read(cur, -1, remove = false, flag(c, "lazily"))
      finally cur.it.close()
    case "scan_costs" =>
      val cur = openScan(c)
      try ScanCosts.read(cur.it, c.get("rows").intValue)
      finally cur.it.close()
    case "iter_open" => cursors(text(c, "it")) = openScan(c); nodes.nullNode
    case "iter_next" =>
      read(cursor(c), if (c.has("n")) c.get("n").intValue else 1, flag(c, "remove"),
        flag(c, "lazily"))
    case "iter_seek" =>
      val cur = cursor(c)
      unwrapped(cur.reusable.getClass.getMethod("refreshAndSeekToPrefix",
          classOf[UnsafeRow]).invoke(cur.reusable, cur.prefix.encode(c.get("k"))))
      nodes.nullNode
    case "iter_close" => cursors.remove(text(c, "it")).foreach(_.it.close()); nodes.nullNode
    case "commit" =>
      val s = store(c).write
      val out = nodes.objectNode().put("version", s.commit())
      val info = s.getStateStoreCheckpointInfo()
      out.put("info_version", info.batchVersion).put("partition", info.partitionId)
      out.set[ObjectNode]("id", opt(info.stateStoreCkptId)).set[ObjectNode]("base_id",
        opt(info.baseStateStoreCkptId))
    case "abort" => store(c).read.abort(); nodes.nullNode
    case "release" => store(c).read.release(); nodes.nullNode
    case "has_committed" => nodes.booleanNode(store(c).write.hasCommitted)
    case "metrics" =>
      val m = store(c).write.metrics
      val custom = nodes.objectNode()
      m.customMetrics.foreach { case (k, v) => custom.put(k.name, v) }
      val known = store(c).owner.provider.supportedCustomMetrics.map(_.name).toSet
      val unknown = m.customMetrics.keys.map(_.name).filterNot(known).toSeq
      require(unknown.isEmpty, s"metrics not among supportedCustomMetrics: $unknown")
      val instance = nodes.objectNode()
      m.instanceMetrics.foreach { case (k, v) => instance.put(k.name, v) }
      nodes.objectNode().put("keys", m.numKeys)
        .put("memory_bytes", m.memoryUsedBytes).set[ObjectNode]("custom", custom).set[ObjectNode](
          "instance", instance)
    case "create_cf" =>
      val s = store(c)
      val (k, v) = (codecOf(text(c, "key")), codecOf((text(c, "value"))))
      val spec = if (c.hasNonNull("spec")) c.get("spec") else nodes.objectNode()
      s.write.createColFamilyIfAbsent(text(c, "cf"), k.schema, v.schema, specOf(k.schema, spec),
        flag(c, "multi"), flag(c, "internal"))
      s.owner.families(text(c, "cf")) = (k, v, prefixCodec(k.schema, spec))
      nodes.nullNode
    case "register_cf" => // a method of Spark 4.3
      val s = store(c)
      val (k, v) = (codecOf(text(c, "key")), codecOf((text(c, "value"))))
      val spec = if (c.hasNonNull("spec")) c.get("spec") else nodes.objectNode()
      val method = s.read.getClass.getMethods.find(_.getName == "registerColFamily").get
      unwrapped(method.invoke(s.read, text(c, "cf"), k.schema, v.schema, specOf(k.schema, spec),
          Boolean.box(flag(c, "multi")), Boolean.box(flag(c, "internal"))))
      s.owner.families(text(c, "cf")) = (k, v, prefixCodec(k.schema, spec))
      nodes.nullNode
    case "replay" =>
      val p = provider(c)
      val replay = p.provider.asInstanceOf[SupportsFineGrainedReplay]
      val (from, to) = (c.get("snapshot").longValue, c.get("version").longValue)
      val fromId = Option(c.get("snapshot_id")).filterNot(_.isNull).map(_.asText)
      keep(
        c,
        p,
        if (flag(c, "read")) replay.replayReadStateFromSnapshot(from, to, fromId, id(c))
        else replay.replayStateFromSnapshot(from, to, flag(c, "read_only"), fromId, id(c))
      )
    case "changes" =>
      val p = provider(c)
      val cf = Option(c.get("cf")).filterNot(_.isNull).map(_.asText)
      val (k, v, _) = p.families(cf.getOrElse("default"))
      val records = p.provider.asInstanceOf[SupportsFineGrainedReplay]
        .getStateStoreChangeDataReader(c.get("start").longValue, c.get("version").longValue, cf,
          id(c))
      val out = nodes.arrayNode()
      records.foreach { case (kind, key, value, batch) =>
        out.add(nodes.arrayNode().add(RecordType.getRecordTypeAsString(kind)).add(
            k.decode(key)).add(v.decode(value)).add(batch))
      }
      out
    case "remove_cf" => nodes.booleanNode(store(c).write.removeColFamilyIfExists(text(c, "cf")))
    case "cf_names" =>
      val a = nodes.arrayNode()
      store(c).read.allColumnFamilyNames.toSeq.sorted.foreach(a.add)
      a
    case "snapshot" =>
      val p = provider(c).provider
      ifThere(p, "doSnapshotMaintenance")(p.doMaintenance())
      nodes.nullNode
    case "cleanup" =>
      val p = provider(c).provider
      ifThere(p, "doCleanupMaintenance")(p.doMaintenance())
      nodes.nullNode
    case "maintenance" => provider(c).provider.doMaintenance(); nodes.nullNode
    case "close" =>
      val p = provider(c)
      providers.remove(text(c, "p"))
      stores.filterInPlace((_, s) => s.owner ne p)
      cursors.filterInPlace((_, x) => x.store.owner ne p)
      p.provider.close()
      ifThere(p.provider, "setUnloaded")(())
      nodes.nullNode
    case "partition_of" => Placement.byShuffle(c)
    case "spark_partition_of" => Placement.byOfflineTools(c)
    case "slots" => Placement.slots(c)
    case "arm" => // lets a seam of the shim fail from now on
      Faults.arm(text(c, "point"), c.get("first").intValue, c.get("last").intValue, text(c, "kind"))
      nodes.nullNode
    case "meanwhile" => // commands for another thread at the next pass of a seam
      meanwhile = null
      val line = json.writeValueAsString(c.get("commands"))
      Faults.meanwhile(text(c, "point"), () => meanwhile = answer(line))
      nodes.nullNode
    case "hold" => // the thread that comes to a seam next, until `let_go`
      Faults.hold(text(c, "point"))
      nodes.nullNode
    case "passes" => nodes.numberNode(Faults.passes)
    case "holds" => nodes.textNode(Faults.holds)
    case "let_go" =>
      Faults.letGo()
      nodes.nullNode
    case "happened" =>
      Faults.disarm()
      require(meanwhile != null, "the commands did not come to their end")
      meanwhile
    case "disarm" => nodes.numberNode(Faults.disarm())
    case "agent_runs" => nodes.booleanNode(Agents.isRunning)
    case "end_killed" => Agents.endKilled(); nodes.nullNode
    case "ask_once" => nodes.textNode(Agents.askOnce(text(c, "request")))
    case "agent_lingers" => Agents.linger(); nodes.nullNode
    case "ask_killed" => nodes.numberNode(Agents.askKilled(c.get("tasks").intValue))
    case "report" => json.readTree(Agents.report())
    case "pid" => nodes.numberNode(ProcessHandle.current.pid)
    case other => throw new IllegalArgumentException(s"command $other")
  }

  private[testing] def failure(e: Throwable): ObjectNode = {
    val chain = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(20).toSeq
    val causes = nodes.arrayNode()
    chain.foreach(x =>
      causes.add(nodes.arrayNode().add(x.getClass.getName).add(String.valueOf(x.getMessage))))
    val condition =
      chain.collectFirst { case t: SparkThrowable if t.getCondition != null => t.getCondition }
    val out = nodes.objectNode()
    out.set[ObjectNode]("causes", causes).set[ObjectNode]("condition", opt(condition))
    out.put("trace", e.getStackTrace.take(12).mkString("\n"))
  }

  private def answer(line: String): ArrayNode = {
    val out = nodes.arrayNode()
    json.readTree(line).elements().asScala.foreach { c =>
      val one = nodes.objectNode()
      try one.set[ObjectNode]("ok", perhapsBeside(c)(asTask(c)(asUserCall(c)(run(c)))))
      catch {
        case e: LinkageError => one.set[ObjectNode]("error", failure(e))
        case e: AssertionError => one.set[ObjectNode]("error", failure(e))
        case e: OutOfMemoryError => one.set[ObjectNode]("error", failure(e))
        case NonFatal(e) => one.set[ObjectNode]("error", failure(e))
      }
      out.add(one)
    }
    out
  }

  /** Arguments: pairs `key=value` for the `SparkConf`. Ends at the end of standard input: by
    * `System.exit`, or by itself if `spark.millpond.harness.exit` is false. Stores see the master
    * `spark.millpond.harness.master` if it is set, as an executor sees that of its driver. */
  def main(args: Array[String]): Unit = {
    val out = new PrintStream(System.out, true, UTF_8)
    System.setOut(System.err) // only answers may go to stdout
    val conf = new SparkConf().setMaster("local[1]").setAppName("provider harness").set(
      "spark.ui.enabled", "false")
    args.foreach { a =>
      val i = a.indexOf('=')
      conf.set(a.take(i), a.drop(i + 1))
    }
    val context = new SparkContext(conf)
    conf.getOption("spark.millpond.harness.master").foreach(context.env.conf.set("spark.master", _))
    context.setLogLevel(conf.get("spark.millpond.harness.log", "ERROR"))
    StateStoreCoordinatorRef.forDriver(context.env, new SQLConf)
    out.println("ready")
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    Iterator.continually(in.readLine()).takeWhile(_ != null).foreach(line =>
      out.println(json.writeValueAsString(answer(line))))
    context.stop()
    if (conf.getBoolean("spark.millpond.harness.exit", true)) System.exit(0)
  }
}
