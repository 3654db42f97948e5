package org.apache.spark.sql.millpond.observe

import java.net.URLEncoder
import java.nio.charset.StandardCharsets.UTF_8
import java.util.Locale

import scala.jdk.CollectionConverters._
import scala.xml.{Node, Text}

import com.fasterxml.jackson.databind.JsonNode
import jakarta.servlet.http.HttpServletRequest
import org.json4s.{JArray, JBool, JObject, JValue}
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.millpond.base.Clock
import org.apache.spark.ui.{UIUtils, WebUIPage}
import org.apache.spark.util.Utils

/** What the executors last reported: executors, work in the background, stores. All texts are nodes
  * of XML, which escapes them. */
private[observe] final class StatePage(tab: StateTab) extends WebUIPage("") {
  import StatePage._

  override def render(request: HttpServletRequest): Seq[Node] = {
    val executors = StoredReports.all(tab.store)
      .map(r => Shown(r, CameReport.of(r, tab.isLive, Clock.passedMs)))
      .sortBy(e => (e.gone, e.report.executor.length, e.report.executor))
    val content =
      if (executors.isEmpty) <p>No executor has reported yet. Reports come every two seconds.</p>
      else
        about(executors) ++
          table("executors", "Executors", ExecutorColumns, executors.map(row)) ++
          background(executors) ++ stores(executors, request)
    UIUtils.headerSparkPage(request, "State", content, tab)
  }

  /** `/state/json`: the last report of each executor. */
  override def renderJson(request: HttpServletRequest): JValue =
    JArray(StoredReports.all(tab.store).map(r =>
        JObject("gone" -> JBool(r.gone), "report" -> JsonMethods.parse(r.report))).toList)

  private def about(executors: Seq[Shown]): Seq[Node] = {
    def sinceNewest: Long = Clock.passedMs - executors.map(_.stored.cameMs).max
    val newest =
      if (tab.isLive) System.currentTimeMillis - sinceNewest else executors.map(_.report.atMs).max
    val text =
      if (tab.isLive) "What the executors know of the state of streaming queries. Executors " +
        s"report every two seconds; the last report is of ${UIUtils.formatDate(newest)}."
      else "What the executors knew of the state of streaming queries, when they last wrote it " +
        s"to the event log: ${UIUtils.formatDate(newest)} at the latest. Ages are as of then."
    <p>{text}</p>
  }

  private def row(e: Shown): Seq[String] = {
    val r = e.report
    val (used, budget) = (r.metric("memory_used_bytes"), r.metric("memory_budget_bytes"))
    Seq(
      r.executor,
      s"${r.json.path("host").asText} (pid ${r.json.path("pid").asLong})",
      if (e.gone) "gone" else if (!tab.isLive) "" else ago(e, r.atMs),
      if (r.json.path("agent_pid").asLong < 0) "none"
      else s"pid ${r.json.path("agent_pid").asLong}",
      count(r.metric("agent_restarts_total")),
      count(r.metric("stores")),
      bytes(used),
      bytes(budget),
      percent(used, budget),
      hits(r.metric("lookups_total"), r.metric("disk_reads_total")),
      count(r.metric("unflushed_changelogs")),
      count(r.metric("snapshot_backlog_versions")),
      count(r.metric("snapshots_total")),
      count(r.metric("snapshot_failures_total")),
      count(r.metric("storage_errors_total"))
    )
  }

  private def background(executors: Seq[Shown]): Seq[Node] = {
    val rows = for {
      e <- executors if !e.gone
      s <- e.report.stores
      w <- s.path("background").elements.asScala
    } yield Seq(w.path("what").asText, ago(e, w.path("since_ms").asLong),
      e.report.executor, operatorOf(s), s.path("partition").asText, s.path("store").asText)
    if (rows.isEmpty) <h4>In the background</h4> ++ <p>Nothing runs in the background now.</p>
    else table("background", "In the background", BackgroundColumns, rows)
  }

  private def stores(executors: Seq[Shown], request: HttpServletRequest): Seq[Node] = {
    val all = for {
      e <- executors if !e.gone || !tab.isLive
      s <- e.report.stores
    } yield (e, s)
    val pages = math.max(1, (all.size + PageRows - 1) / PageRows)
    val page = Option(request.getParameter("page")).flatMap(_.toIntOption).getOrElse(1)
      .max(1).min(pages)
    val leftOut = executors.map(_.report.json.path("stores_left_out").asLong).sum
    val shown = all.sortBy { case (_, s) =>
      (s.path("run_id").asText, s.path("operator").asLong, s.path("partition").asInt,
        s.path("store").asText)
    }.slice((page - 1) * PageRows, page * PageRows)
    val links = if (pages == 1) Nil
    else (1 to pages).flatMap(p => Seq(<a href={s"?page=$p"}>{p.toString}</a>, Text(" ")))
    val more = if (leftOut == 0) Nil else <p>{s"$leftOut more stores are not reported."}</p>
    table("stores", s"Stores (${all.size})", StoreColumns,
      shown.map { case (e, s) => storeRow(e, s) }, runOf(request)) ++
      (if (links.isEmpty) Nil else <p>Page: {links}</p>) ++ more
  }

  private def storeRow(e: Shown, s: JsonNode): Seq[String] = {
    val memory = s.path("memory_bytes").asDouble
    Seq(
      s.path("run_id").asText,
      operatorOf(s),
      s.path("partition").asText,
      s.path("store").asText,
      e.report.executor,
      if (s.path("version").asLong < 0) "not loaded" else s.path("version").asText,
      bytes(memory),
      percent(memory, e.report.metric("memory_budget_bytes")),
      hits(s.path("lookups").asDouble, s.path("disk_reads").asDouble),
      s.path("unflushed").asText,
      since(e, s.path("unflushed_since_ms").asLong),
      s.path("snapshot_version").asText,
      since(e, s.path("snapshot_ms").asLong),
      s.path("behind").asText
    )
  }

  /** A run's id leads to Spark's own page about the query. */
  private def runOf(request: HttpServletRequest)(cell: String, column: Int): Seq[Node] =
    if (column > 0 || cell.isEmpty) Text(cell)
    else {
      val at = "/StreamingQuery/statistics/?id=" + URLEncoder.encode(cell, UTF_8)
      <a href={UIUtils.prependBaseUri(request, tab.basePath, at)}>{cell.take(8)}</a>
    }

  private def plain(cell: String, column: Int): Seq[Node] = Text(cell)

  private def table(id: String, title: String, columns: Seq[String], rows: Seq[Seq[String]],
      cell: (String, Int) => Seq[Node] = plain): Seq[Node] =
    <h4>{title}</h4> ++
      <table id={s"millpond-$id"} class={UIUtils.TABLE_CLASS_STRIPED}>
        <thead><tr>{columns.map(c => <th>{c}</th>)}</tr></thead>
        <tbody>{
        rows.map(r =>
          <tr>{r.zipWithIndex.map { case (text, i) => <td>{cell(text, i)}</td> }}</tr>)
      }</tbody>
      </table>
}

private object StatePage {
  private val PageRows = 200

  /** One executor's last report. */
  private final case class Shown(stored: StoredReport, came: CameReport) {
    def gone: Boolean = stored.gone
    def report: Report = came.report
  }

  private val ExecutorColumns = Seq("Executor", "Host", "Last report", "Agent", "Agent restarts",
    "Stores", "Memory", "Budget", "Used", "Hit ratio", "Unflushed changelogs",
    "Versions without a snapshot", "Snapshots", "Failed snapshots", "Storage errors")
  private val BackgroundColumns = Seq("What", "Since", "Executor", "Operator", "Partition", "Store")
  private val StoreColumns = Seq("Run", "Operator", "Partition", "Store", "Executor", "Version",
    "Memory", "Of the budget", "Hit ratio", "Unflushed changelogs", "Oldest of them",
    "Newest snapshot", "Its age", "Versions after it")

  private def operatorOf(store: JsonNode): String = store.path("operator").asText
  private def count(n: Double): String = n.toLong.toString
  private def bytes(n: Double): String = Utils.bytesToString(n.toLong)
  private def percent(part: Double, whole: Double): String =
    if (whole <= 0) "" else "%.0f %%".formatLocal(Locale.ROOT, 100 * part / whole)
  /** Of all point reads, those that memory answered. */
  private def hits(lookups: Double, diskReads: Double): String =
    if (lookups <= 0) "" else "%.1f %%".formatLocal(Locale.ROOT, 100 * (1 - diskReads / lookups))
  private def ago(e: Shown, thenMs: Long): String = UIUtils.formatDuration(e.came.agoMs(thenMs))
  private def since(e: Shown, thenMs: Long): String = if (thenMs <= 0) "" else ago(e, thenMs)
}
