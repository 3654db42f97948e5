package org.apache.spark.sql.millpond.agent

import java.io.{EOFException, File, FileNotFoundException, FileOutputStream, IOException}
import java.net.URI
import java.nio.file.Files
import java.util.concurrent.ConcurrentHashMap

import scala.annotation.tailrec
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  FSDataInputStream, FileAlreadyExistsException, FileContext, FileStatus, FileSystem,
  Options => HadoopOptions, ParentNotDirectoryException, Path, StreamCapabilities,
  UnsupportedFileSystemException
}
import org.apache.hadoop.ipc.RemoteException
import org.apache.hadoop.security.{AccessControlException, UserGroupInformation}

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.millpond.base.Json

/** Moves files of Hadoop's file systems for the agent. The agent decides what to store and where,
  * and asks for whole files by path. This JVM has the job's class path and credentials. Requests
  * and answers are JSON, like the agent's own; bytes go through local files. */
private[millpond] object HadoopFiles {
  private val confs = new ConcurrentHashMap[String, Configuration]
  @volatile private var newest: Configuration = null
  private val creating = new Object
  private val contexts = new ConcurrentHashMap[(URI, UserGroupInformation), FileContext]
  private val MaxCauses = 5
  private val MostListings = 10
  // What they say if the file that is being read was replaced.
  private val Replaced = Seq("requested generation is deleted", ", 412, GET, ")
  // What Java calls a FileNotFoundException too: the file may well be there.
  private val Unopened = Seq("(Too many open files", "(Input/output error)")
  // What Google's connector says if another writer was first.
  private val LostRaces = Seq("412 Precondition Failed", "Cannot overwrite an existing file")

  /** The configuration for the file system of `root`: that of the store that was opened last. */
  def remember(root: String, conf: Configuration): Unit = {
    newest = conf
    confs.put(siteOf(new Path(root)), conf)
    ()
  }

  private def siteOf(path: Path): String = s"${path.toUri.getScheme}://${path.toUri.getAuthority}"
  private def confOf(path: Path): Configuration = {
    val conf = confs.getOrDefault(siteOf(path), newest)
    if (conf != null) conf
    // a script asks before its session's first query, or a tool without a session
    else SparkSession.getActiveSession.orElse(SparkSession.getDefaultSession)
      .map(_.sessionState.newHadoopConf()).getOrElse(new Configuration)
  }

  def call(method: String, request: String): String = {
    val answer = Json.obj()
    try answer.set[JsonNode]("ok", run(method, Json.parse(request)))
    catch {
      case e: LinkageError => tell(answer, e) // a connector for another Hadoop
      case NonFatal(e) => tell(answer, e)
    }
    Json.text(answer)
  }

  private def tell(answer: ObjectNode, e: Throwable): Unit = {
    answer.putObject("error").put("class", nameOf(e)).put("message", textOf(e))
    ()
  }

  /** The executor's own disk failed. That says nothing about the file that was asked for. */
  private final class LocalFileException(cause: IOException)
      extends IOException(cause.getMessage, cause)

  private def onOwnDisk[T](work: => T): T =
    try work
    catch { case e: IOException => throw new LocalFileException(e) }

  /** What a file system could not find when it was opened, such as its key file, is no file in it.
    */
  private final class UnopenedFileSystemException(cause: Throwable)
      extends IOException(cause.getMessage, cause)

  private def fileSystemOf(path: Path, conf: Configuration): FileSystem =
    try path.getFileSystem(conf)
    catch { case e @ NotThere() => throw new UnopenedFileSystemException(e) }

  /** A file or one of its parents is absent. If a parent is a file, HDFS says that access is
    * denied. */
  private object NotThere {
    def unapply(e: Throwable): Boolean =
      e match {
        case _: FileNotFoundException if Unopened.exists(firstLine(e).contains) => false
        case _: FileNotFoundException if firstLine(e).contains("container does not exist") => false
        case _: FileNotFoundException if firstLine(e).contains("filesystem does not exist") => false
        case _: FileNotFoundException | _: ParentNotDirectoryException => true
        case _: AccessControlException => firstLine(e).endsWith("(is not a directory)")
        case _ => false
      }
  }

  private def firstLine(e: Throwable): String =
    String.valueOf(e.getMessage).linesIterator.take(1).mkString

  /** The first line of the message, and of the messages of its causes that say something else. A
    * connector may name the server's answer in the cause alone. */
  private def textOf(e: Throwable): String =
    Iterator.iterate(e.getCause)(_.getCause).takeWhile(_ != null).take(MaxCauses)
      .foldLeft(firstLine(e)) { (said, cause) =>
        val line = firstLine(cause)
        if (cause.getMessage == null || said.contains(line)) said
        else s"$said; caused by ${nameOf(cause)}: $line"
      }

  /** The simple name of the exception's class. A server's exception that Hadoop's client did not
    * translate counts as itself. */
  private def nameOf(e: Throwable): String =
    e match {
      case NotThere() => classOf[FileNotFoundException].getSimpleName
      case lost: NotReplacedException => nameOf(lost.getCause)
      case remote: RemoteException => remote.getClassName.split("[.$]").last
      case _ => e.getClass.getSimpleName
    }

  private def run(method: String, r: JsonNode): ObjectNode = {
    val path = new Path(r.get("path").asText)
    val conf = confOf(path)
    val fs = fileSystemOf(path, conf)
    val out = Json.obj()
    method match {
      case "put" =>
        put(fs, conf, path, new Path(path.getParent, r.get("staging").asText),
          new File(r.get("local").asText), r.get("if_absent").asBoolean)
      case "get" =>
        get(fs, path, new File(r.get("local").asText), r.path("start").asLong(0L),
          r.path("length").asLong(Long.MaxValue))
      case "stat" => describe(fs.getFileStatus(path), out)
      case "list" => list(fs, path, out, MostListings)
      case "delete" =>
        r.get("paths").elements.forEachRemaining { p =>
          val doomed = new Path(p.asText)
          if (isFile(fs, doomed)) fs.delete(doomed, false): Unit
        }
      case other => throw new IllegalArgumentException(s"no method '$other'")
    }
    out
  }

  /** Puts all files below a folder, which may be absent, into `out`. If one of its folders was
    * deleted meanwhile, the listing lacks more than that: it is made anew. Of each file it keeps
    * what is answered: a status may have all places of all blocks. */
  @tailrec private def list(fs: FileSystem, path: Path, out: ObjectNode, left: Int): Unit = {
    val found = out.putArray("files")
    val isWhole =
      try {
        val files = fs.listFiles(path, true)
        while (files.hasNext) {
          val status = files.next()
          if (status.isFile) describe(status, found.addObject())
        }
        true
      } catch { case NotThere() if left > 0 => false }
    if (!isWhole) {
      if (isThere(fs, path)) list(fs, path, out, left - 1)
      else found.removeAll(): Unit
    }
  }

  private def isThere(fs: FileSystem, path: Path): Boolean =
    try fs.exists(path)
    catch { case NotThere() => false }

  private def isFile(fs: FileSystem, path: Path): Boolean =
    try fs.getFileStatus(path).isFile
    catch { case NotThere() => false }

  private def describe(status: FileStatus, out: ObjectNode): Unit = {
    if (!status.isFile) throw new FileNotFoundException(s"${status.getPath} is a directory")
    out.put("path", status.getPath.toUri.getPath).put("size_bytes", status.getLen)
      .put("modified_ms", status.getModificationTime)
    ()
  }

  /** On GCS and Azure the file that a reader opened may be replaced before its bytes come. Then it
    * reads the new one. */
  @tailrec private def get(
      fs: FileSystem, path: Path, local: File, start: Long, length: Long): Unit = {
    val read =
      try { fetch(fs, path, local, start, length); true }
      catch { case e: IOException if Replaced.exists(textOf(e).contains) => false }
    if (!read) {
      if (!isFile(fs, path)) throw new FileNotFoundException(path.toString)
      get(fs, path, local, start, length)
    }
  }

  private def fetch(fs: FileSystem, path: Path, local: File, start: Long, length: Long): Unit = {
    // without asking for its length before: on an object storage that is a request
    val in = fs.open(path)
    try {
      val out = onOwnDisk(new FileOutputStream(local))
      try
        if (start == 0L || reaches(in, start)) {
          val buffer = new Array[Byte](1 << 20)
          var left = length
          var read = 0
          while (left > 0 && read >= 0) {
            read = in.read(buffer, 0, math.min(left, buffer.length.toLong).toInt)
            if (read > 0) { onOwnDisk(out.write(buffer, 0, read)); left -= read }
          }
        }
      finally onOwnDisk(out.close())
    } finally in.close()
  }

  /** Whether the file does not end before `start`, where it is then read from. */
  private def reaches(in: FSDataInputStream, start: Long): Boolean =
    try { in.seek(start); true }
    catch { case _: EOFException => false }

  private def put(fs: FileSystem, conf: Configuration, target: Path, staging: Path, local: File,
      ifAbsent: Boolean): Unit = {
    if (ifAbsent && fs.exists(target)) throw new FileAlreadyExistsException(target.toString)
    if (target.toUri.getScheme == "gs") putObject(fs, target, local, ifAbsent)
    else {
      fs.mkdirs(target.getParent)
      try {
        val out = fs.create(staging, false)
        try {
          Files.copy(local.toPath, out)
          if (out.hasCapability(StreamCapabilities.HSYNC)) out.hsync()
        } finally out.close()
        // Some file systems check and then rename, in two steps: only one task of this
        // JVM may do so at a time.
        if (ifAbsent) creating.synchronized(rename(fs, conf, staging, target, replace = false))
        else replace(fs, conf, staging, target)
      } catch {
        case e: NotReplacedException => throw e
        case NonFatal(e) =>
          // Some say only that the rename failed. What was not renamed is still there.
          val lost =
            try {
              val lost = ifAbsent && isFile(fs, staging) && isFile(fs, target)
              fs.delete(staging, false)
              lost
            } catch { case NonFatal(again) => e.addSuppressed(again); false }
          throw if (lost) new FileAlreadyExistsException(target.toString) else e
      }
    }
  }

  /** The old file may be gone, so the new one stays. This counts as its cause. */
  private final class NotReplacedException(staging: Path, target: Path, cause: Throwable)
      extends IOException(s"the new content of $target is kept in $staging", cause)

  /** Where that is a deletion and then a rename, the rename may fail alone. Then `staging` is the
    * only copy. */
  private def replace(fs: FileSystem, conf: Configuration, staging: Path, target: Path): Unit =
    try rename(fs, conf, staging, target, replace = true)
    catch {
      case NonFatal(e) =>
        val mayBeGone =
          try !isThere(fs, target)
          catch { case NonFatal(_) => true }
        if (!mayBeGone) throw e
        try rename(fs, conf, staging, target, replace = true)
        catch { case NonFatal(again) => throw new NotReplacedException(staging, target, again) }
    }

  /** On GCS a file appears whole when its stream is closed, if it has not changed since its
    * creation here. A rename would copy it and delete it, and would delete the old file before. */
  @tailrec private def putObject(
      fs: FileSystem, target: Path, local: File, ifAbsent: Boolean): Unit = {
    val written =
      try {
        val out = fs.create(target, !ifAbsent)
        Files.copy(local.toPath, out) // if this fails, a close would store a part of the file
        out.close()
        true
      } catch {
        case e: IOException if LostRaces.exists(textOf(e).contains) => false
      }
    if (!written) {
      if (ifAbsent) throw new FileAlreadyExistsException(target.toString)
      putObject(fs, target, local, ifAbsent) // another writer was first: now replace that file
    }
  }

  private def rename(
      fs: FileSystem, conf: Configuration, from: Path, to: Path, replace: Boolean): Unit =
    try contextOf(fs, conf).rename(fs.makeQualified(from), fs.makeQualified(to),
        if (replace) HadoopOptions.Rename.OVERWRITE else HadoopOptions.Rename.NONE)
    catch {
      // an older file system without atomic replacement; Spark writes its own logs in this way too
      case _: UnsupportedFileSystemException =>
        if (!replace && fs.exists(to)) throw new FileAlreadyExistsException(to.toString)
        if (!fs.rename(from, to) && !(replace && fs.delete(to, false) && fs.rename(from, to)))
          throw new IOException(s"$from cannot be renamed to $to")
    }

  /** Kept as long as the file system itself, which Hadoop caches: on an object storage a new one
    * makes clients and threads of its own, and nobody can close it. */
  private def contextOf(fs: FileSystem, conf: Configuration): FileContext = {
    val site = fs.getUri
    def create() = FileContext.getFileContext(site, conf)
    if (conf.getBoolean(s"fs.${site.getScheme}.impl.disable.cache", false)) create()
    else contexts.computeIfAbsent((site, UserGroupInformation.getCurrentUser), _ => create())
  }
}
