package org.apache.spark.sql.millpond.engine

import java.io.File
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.agent.Agent
import org.apache.spark.sql.millpond.base.{Daemons, Seams}

/** Tells the agent how far the changelog of a running batch is written, on a thread of its own: the
  * agent sends it to an object storage meanwhile, so that the commit need not wait for all of it.
  * Nothing that fails here matters to the batch.
  * @param fixedFrom what the file has from this byte on never changes
  * @param generation of the local copy, as for other calls to the agent */
private[engine] final class LogUpload(context: StoreContext, file: File, fixedFrom: Long,
    version: Long, id: String, generation: Int) extends Logging {
  import LogUpload._

  private val leastBytes = context.options.long("storage.s3.multipartThreshold").get
  private var told = 0L // size of the file that the agent knows, or soon will
  @volatile private var size = 0L
  @volatile private var complete = false
  @volatile private var ended = false
  private val waits = new AtomicBoolean // to be told

  /** The file has so many bytes now. Callers hold the engine's monitor, here and in `end`. */
  def written(bytes: Long): Unit =
    if (bytes > leastBytes && bytes - told >= StepBytes && !ended && context.sendsAhead &&
      Seams.director == null) {
      told = bytes
      size = bytes
      if (waits.compareAndSet(false, true)) pool.execute(() => tell())
    }

  /** The file is complete. The commit sends what is left, and nobody else begins to. */
  def completed(): Unit = complete = true

  /** The batch is committed or taken back. If its commit did not use what was sent, it goes. */
  def end(): Unit = if (!ended) {
    ended = true
    // after all that `tell` says: the thread does one piece of work after the other
    if (told > 0) pool.execute(() => ask("changelog_ended")(_ => ()): Unit)
  }

  private def tell(): Unit = {
    waits.set(false)
    if (!complete && !ended) {
      val answer = ask("changelog_grew")(_.put("version", version).put("id", id)
        .put("fixed_from", fixedFrom).put("bytes", size))
      if (answer.exists(!_.get("sends").asBoolean)) context.sendsAhead = false
    }
  }

  /** An agent that died has forgotten what it sent: nothing starts another one for this. */
  private def ask(method: String)(fill: ObjectNode => Any): Option[JsonNode] =
    try
      if (!Agent.isRunning) None
      else Some(context.tell(method, generation) { request =>
        request.put("staged", file.getPath)
        fill(request)
      })
    catch {
      case NonFatal(e) =>
        logWarning(s"store ${context.label}: '$method' failed, so the commit sends the whole " +
          s"changelog: ${e.getMessage}")
        None
    }
}

private object LogUpload {
  private val StepBytes = 1L << 20

  private lazy val pool = Daemons.one("millpond-log-upload")
}
