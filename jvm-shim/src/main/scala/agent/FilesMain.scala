package org.apache.spark.sql.millpond.agent

import java.io.{BufferedReader, InputStreamReader, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.Executors

import org.apache.spark.sql.millpond.base.Json

/** Moves files of Hadoop's file systems for a command that has no session. Each line of standard
  * input is a request, each line of standard output the answer to one of them. The end of the
  * input ends it. */
object FilesMain {
  private val Failed = 1
  private val OutOfMemory = 3 // as the JVM itself says it with -XX:+ExitOnOutOfMemoryError

  def main(args: Array[String]): Unit = orEnd {
    val out = new PrintStream(System.out, true, UTF_8)
    System.setOut(System.err) // nothing else may write between the answers
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    val pool = Executors.newCachedThreadPool()
    Iterator.continually(in.readLine()).takeWhile(_ != null).foreach { line =>
      pool.execute { () =>
        orEnd {
          val asked = Json.parse(line)
          val done = HadoopFiles.call(asked.get("method").asText, asked.get("request").asText)
          out.println(Json.text(Json.obj().put("id", asked.get("id").asLong).put("answer", done)))
        }
      }
    }
    System.exit(0) // a request that is still under way has nobody to answer to
  }

  /** A request whose thread died would have no answer, and whoever asked would wait for it. They
    * notice the end of the process. */
  private def orEnd(work: => Unit): Unit =
    try work
    catch {
      case e: Throwable =>
        val code = e match {
          case _: OutOfMemoryError => OutOfMemory
          case _ => Failed
        }
        try System.err.println(e)
        finally Runtime.getRuntime.halt(code)
    }
}
