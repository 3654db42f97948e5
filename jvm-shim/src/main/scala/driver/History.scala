package org.apache.spark.sql.millpond.driver

import java.io.ByteArrayOutputStream
import java.nio.charset.StandardCharsets
import java.util.{Locale, UUID}
import java.util.concurrent.ConcurrentHashMap
import java.util.zip.GZIPOutputStream

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._
import scala.util.Using
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.millpond.base.{Clock, Json, Options}
import org.apache.spark.sql.streaming.StreamingQueryProgress

/** Keeps what Spark said of the last batches in the Spark checkpoint: files
  * `millpond/history/<start>-<run>-<part>-<batches>.jsonl.gz`, a line of JSON a batch. The driver
  * writes the newest part anew while it grows, and deletes the earliest parts. No batch waits for
  * it: Spark tells its listeners later, on a thread of their own, and a clock's thread writes. */
private object History extends Logging {
  private val MostBatches = 100
  // A progress with the offsets of ten thousand Kafka partitions has 300 KB.
  private val MostCharacters = 1 << 20
  // A query that is started again and again must not push out what was before.
  private val LeastParts = 20
  private val IntervalMs = 1000L
  private val Name = """(\d{13,18})-(.{36})-(\d{6,9})-\d{4,9}\.jsonl\.gz""".r
  private val running = new ConcurrentHashMap[UUID, Run]
  private lazy val clock = Clock.every(IntervalMs, "millpond-history") {
    running.values.asScala.foreach(_.write())
  }

  def started(query: StreamExecution, run: UUID): Unit = {
    val conf = query.sparkSession.sessionState.conf
    // a wrong option ends the query with its first plan, which says why
    val batches =
      try Options.resolve(conf.getAllConfs).int("history.batches")
      catch { case NonFatal(_) => 0 }
    if (batches > 0) {
      clock: Unit
      running.put(run, new Run(new Path(query.resolvedCheckpointRoot), run,
          query.sparkSession.sessionState.newHadoopConf(),
          math.max(LeastParts, batches / MostBatches + 1))): Unit
    }
  }

  def progress(of: StreamingQueryProgress): Unit = {
    val run = running.get(of.runId)
    if (run != null) run.add(line(of))
  }

  def ended(run: UUID): Unit = {
    val ending = running.remove(run)
    if (ending != null) ending.write()
  }

  /** What a user observes may be rows. */
  private def line(of: StreamingQueryProgress): String = Json.parse(of.json) match {
    case node: ObjectNode =>
      Balance.takeMoves(of.runId, of.batchId).foreach(node.set[ObjectNode]("millpondMoves", _))
      Json.text(node.without[ObjectNode]("observedMetrics"))
    case other => Json.text(other)
  }

  private final case class Kept(start: Long, run: String, part: Int, path: Path)

  /** The files in a folder, the earliest first. Their names do not sort so: a number gets another
    * digit when it needs one. */
  private def kept(fs: FileSystem, folder: Path): Seq[Kept] =
    if (!fs.exists(folder)) Nil
    else
      fs.listStatus(folder).toSeq.map(_.getPath).flatMap { path =>
        path.getName match {
          case Name(start, run, part) => Some(Kept(start.toLong, run, part.toInt, path))
          case _ => None
        }
      }.sortBy(file => (file.start, file.run, file.part))

  /** In the digits that Python reads, whatever the language of the JVM. */
  def fileName(startMs: Long, run: UUID, part: Int, batches: Int): String =
    "%013d-%s-%06d-%04d.jsonl.gz".formatLocal(Locale.ROOT, startMs, run, part, batches)

  private final class Part(val number: Int) {
    val lines = ArrayBuffer.empty[String]
    var characters = 0
    def isFull: Boolean = lines.size >= MostBatches || characters >= MostCharacters
  }

  private final class Run(root: Path, run: UUID, conf: Configuration, mostParts: Int) {
    private val folder = CheckpointPaths.history(root)
    private val began = System.currentTimeMillis
    private val writing = new Object
    // guarded by `this`: listeners add, and nobody keeps it while a file is written
    private var parts = Vector(new Part(0))
    private var hasNews = false
    // guarded by `writing`
    private var start = 0L // 0: nothing was written
    private var hasFailed = false
    private var newest = Option.empty[(Int, Path)] // the last file, and its part

    def add(line: String): Unit = synchronized {
      if (parts.last.isFull) {
        parts :+= new Part(parts.last.number + 1)
        // storage fails: the earliest go first, as they do in storage
        parts = parts.takeRight(mostParts)
      }
      parts.last.lines += line
      parts.last.characters += line.length
      hasNews = true
    }

    def write(): Unit = writing.synchronized {
      val (due, news) = synchronized {
        val was = hasNews
        hasNews = false
        (parts.map(p => p.number -> p.lines.toVector), was)
      }
      if (news)
        try {
          val fs = folder.getFileSystem(conf)
          // The first store makes the folder: a query of another provider gets none. Asked each
          // time: after the query's end its Spark checkpoint may be gone before the news comes.
          if (!fs.exists(folder.getParent)) running.remove(run): Unit
          else {
            // after all runs before, even if this driver's clock is behind theirs
            if (start == 0L) start = kept(fs, folder).lastOption.fold(began)(_.start + 1).max(began)
            due.foreach { case (number, lines) => publish(fs, number, lines) }
            synchronized { parts = parts.filter(_.number >= due.last._1) }
            hasFailed = false
          }
        } catch {
          // the query goes on; the next write has these batches too
          case NonFatal(e) =>
            synchronized { hasNews = true }
            if (!hasFailed) logWarning(s"the history in $folder cannot be written: ${e.getMessage}")
            hasFailed = true
        }
    }

    /** Write a part under a new name, and then delete the file that it replaces: a driver that dies
      * in between loses nothing, and needs no rename, which object storages lack. */
    private def publish(fs: FileSystem, number: Int, lines: Vector[String]): Unit = {
      val file = new Path(folder, fileName(start, run, number, lines.size))
      // a part only grows: a file of this name has all of it already
      if (!newest.contains(number -> file)) {
        val packed = new ByteArrayOutputStream
        Using.resource(new GZIPOutputStream(packed)) { out =>
          lines.foreach(line => out.write((line + "\n").getBytes(StandardCharsets.UTF_8)))
        }
        LogFiles.overwrite(file, packed.toByteArray, conf)
        if (newest.exists(_._1 == number)) newest.foreach(old => fs.delete(old._2, false))
        else prune(fs)
        newest = Some(number -> file)
      }
    }

    /** Delete the earliest files, of all runs. */
    private def prune(fs: FileSystem): Unit =
      kept(fs, folder).dropRight(mostParts).foreach(file => fs.delete(file.path, false))
  }
}
