package org.apache.spark.sql.millpond.peer

import java.io.{FileWriter, PrintWriter}

import com.fasterxml.jackson.databind.ObjectMapper
import org.scalatest.Reporter
import org.scalatest.events._

/** Writes what scalatest reports: one JSON object a line, for each test its suite, name, outcome,
  * error, first and last millisecond. */
class Report extends Reporter {
  private val mapper = new ObjectMapper
  private val out = new PrintWriter(new FileWriter(System.getProperty("peer.report"), true))
  private var began = 0L

  override def apply(event: Event): Unit = event match {
    case e: TestStarting => began = e.timeStamp
    case e: TestSucceeded => write(e.suiteClassName, e.testName, "passed", "", e.timeStamp)
    case e: TestFailed =>
      write(e.suiteClassName, e.testName, "failed", said(e.throwable, e.message), e.timeStamp)
    case e: TestCanceled =>
      began = e.timeStamp
      write(e.suiteClassName, e.testName, "canceled", e.message, e.timeStamp)
    case e: TestIgnored =>
      began = e.timeStamp
      write(e.suiteClassName, e.testName, "ignored", "", e.timeStamp)
    case e: SuiteAborted =>
      began = e.timeStamp
      write(e.suiteClassName, "", "aborted", said(e.throwable, e.message), e.timeStamp)
    case e: RunAborted =>
      began = e.timeStamp
      write(None, "", "aborted", said(e.throwable, e.message), e.timeStamp)
    case e: SuiteCompleted =>
      began = e.timeStamp
      write(e.suiteClassName, "", "completed", "", e.timeStamp)
    case _ => ()
  }

  private def write(suite: Option[String], test: String, outcome: String, error: String,
      ended: Long): Unit = {
    val line = mapper.createObjectNode.put("suite", suite.getOrElse("")).put("test", test)
      .put("outcome", outcome).put("error", error).put("began_ms", began).put("ended_ms", ended)
    out.println(mapper.writeValueAsString(line))
    out.flush()
  }

  /** The message and those of the causes: the cause is often what tells. */
  private def said(error: Option[Throwable], message: String): String = {
    val chain = Iterator.iterate(error.orNull)(_.getCause).takeWhile(_ != null).take(8).toSeq
    (message +: chain.map(_.toString)).distinct.mkString("\ncaused by: ")
  }
}
