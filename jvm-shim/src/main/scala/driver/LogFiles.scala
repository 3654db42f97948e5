package org.apache.spark.sql.millpond.driver

import java.io.{
  BufferedOutputStream, ByteArrayOutputStream, DataOutputStream, FileOutputStream, OutputStream
}
import java.nio.channels.FileChannel
import java.nio.file.{FileAlreadyExistsException, FileSystemException, Files, Path => File}
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.attribute.PosixFilePermissions
import java.util.Locale
import java.util.zip.CRC32

import scala.util.Using
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  FSDataInputStream, FSDataOutputStream, FileStatus, FileSystem, LocalFileSystem, Path, PathFilter,
  RawLocalFileSystem
}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager, FileSystemBasedCheckpointFileManager
}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.millpond.base.{Names, Options}

/** Spark's own files of a query: logs, metadata, schemas. On a local disk they are written by
  * system calls; Hadoop's client starts `readlink` and `chmod` for each, which takes some 30 ms of
  * every log. Anywhere else Spark's own way is taken.
  *
  * @param path any path of the file system.
  * @param conf Hadoop's settings with those of the session.
  */
abstract class LogFiles(path: Path, conf: Configuration) extends CheckpointFileManager {
  private val files: CheckpointFileManager =
    if (LogFiles.isLocal(path, conf)) new DiskFiles(path, conf)
    else {
      val sparks = new Configuration(conf)
      sparks.unset(LogFiles.Setting)
      CheckpointFileManager.create(path, sparks)
    }

  override def createAtomic(path: Path, overwriteIfPossible: Boolean) =
    files.createAtomic(path, overwriteIfPossible)
  override def open(path: Path): FSDataInputStream = files.open(path)
  override def list(path: Path, filter: PathFilter): Array[FileStatus] = files.list(path, filter)
  override def mkdirs(path: Path): Unit = files.mkdirs(path)
  override def exists(path: Path): Boolean = files.exists(path)
  override def delete(path: Path): Unit = files.delete(path)
  override def isLocal: Boolean = files.isLocal
  override def createCheckpointDirectory(): Path = files.createCheckpointDirectory()
  override def close(): Unit = files.close()
}

private object LogFiles extends Logging {
  val Setting: String = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key

  /** The session has a streaming plan, so a query may start. Another class of the user's stays. */
  def prepare(session: SparkSession): Unit =
    (session.conf.getOption(Setting), isAsked(session)) match {
      case (None, true) =>
        session.conf.set(Setting, Names.LogFilesClass)
        logDebug(s"$Setting is set in the session, by the option logs.direct.")
      // set for a query before the option changed
      case (Some(Names.LogFilesClass), false) => session.conf.unset(Setting)
      case _ =>
    }

  /** A value that is neither true nor false is refused with the other options, before the first
    * task. */
  private def isAsked(session: SparkSession): Boolean =
    session.conf.getOption(Options.prefix + "logs.direct")
      .forall(_.trim.toLowerCase(Locale.ROOT) != "false")

  /** Write a file of ours beside Spark's, or write it anew.
    *
    * @param conf as of [[prepare]]'s session.
    */
  def overwrite(file: Path, bytes: Array[Byte], conf: Configuration): Unit =
    if (conf.get(Setting) == Names.LogFilesClass && isLocal(file, conf)) {
      val out = new DiskFiles(file, conf).createAtomic(file, true)
      try {
        out.write(bytes)
        out.close()
      } catch { case NonFatal(e) => out.cancel(); throw e }
    } else {
      val out = file.getFileSystem(conf).create(file, true)
      try out.write(bytes)
      finally out.close()
    }

  /** Hadoop's client for `file:`, or Hive's, which Spark loads where Hive's jars are. A job may
    * have put a client of its own there. */
  def isLocal(path: Path, conf: Configuration): Boolean = {
    val scheme = Option(path.toUri.getScheme).getOrElse(FileSystem.getDefaultUri(conf).getScheme)
    scheme == "file" && (path.getFileSystem(conf) match {
      case local: LocalFileSystem =>
        local.getRaw.getClass == classOf[RawLocalFileSystem] &&
        local.getClass.getName.startsWith("org.apache.hadoop.")
      case _ => false
    })
  }
}

/** Files on a local disk. They look as Hadoop's client would leave them, with its sums and its
  * permissions, and it reads them. Other than there, a file is on the disk before it has its name,
  * and the name before the query goes on: no power cut leaves an empty log, or takes one back. */
private final class DiskFiles(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  private val local = fs.asInstanceOf[LocalFileSystem]
  private val permission =
    PosixFilePermissions.fromString(
      FsPermission.getFileDefault.applyUMask(FsPermission.getUMask(conf)).toString)
  private val syncs = conf.getBoolean(Options.prefix + "commit.fsync", true)

  private def file(path: Path): File = local.pathToFile(path).toPath
  private def sums(file: File): File = file.resolveSibling(s".${file.getFileName}.crc")

  override def createTempFile(path: Path): FSDataOutputStream = {
    val target = file(path)
    Files.createDirectories(target.getParent)
    new FSDataOutputStream(new SummedFile(target, sums(target), syncs, permitted), null)
  }

  private def permitted(file: File): Unit = {
    Files.setPosixFilePermissions(file, permission)
    ()
  }

  /** Without what a writer left that was killed: with one such file among its commits, Spark starts
    * no query that has committed nothing yet. */
  override def list(path: Path, filter: PathFilter): Array[FileStatus] =
    super.list(path, (found: Path) => filter.accept(found) && !DiskFiles.isUnfinished(found))

  /** A reader never sees the sums of another file: they go before the file comes, and come after
    * it. */
  override def renameTempFile(srcPath: Path, dstPath: Path, overwriteIfPossible: Boolean): Unit = {
    val (from, to) = (file(srcPath), file(dstPath))
    try {
      if (!overwriteIfPossible && Files.exists(to))
        throw new FileAlreadyExistsException(to.toString)
      Files.deleteIfExists(sums(to))
      if (overwriteIfPossible) Files.move(from, to, ATOMIC_MOVE) else named(from, to)
    } catch {
      case _: FileAlreadyExistsException if !overwriteIfPossible =>
        delete(srcPath)
        throw new org.apache.hadoop.fs.FileAlreadyExistsException(s"$dstPath exists")
      case NonFatal(e) => DiskFiles.discard(e, from, sums(from))
    }
    Files.move(sums(from), sums(to), ATOMIC_MOVE)
    if (syncs) Using.resource(FileChannel.open(to.getParent, READ))(_.force(true))
  }

  /** Of two writers one gets the name. Few file systems have no links; there both may. */
  private def named(from: File, to: File): Unit =
    try {
      Files.createLink(to, from)
      Files.delete(from)
    } catch {
      case e: FileAlreadyExistsException => throw e
      case _: UnsupportedOperationException | _: FileSystemException =>
        Files.move(from, to, ATOMIC_MOVE)
        ()
    }
}

private object DiskFiles {
  // as Spark's manager names what it renames later
  private val Unfinished = """\..*\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp""".r

  /** Delete what a writer leaves that failed. A stream whose close failed cannot be cancelled. */
  def discard(failure: Throwable, files: File*): Nothing = {
    files.foreach { file =>
      try Files.deleteIfExists(file)
      catch { case NonFatal(e) => failure.addSuppressed(e) }
    }
    throw failure
  }

  def isUnfinished(path: Path): Boolean = Unfinished.matches(path.getName)
}

/** A file, and beside it the sums that Hadoop's client expects: a head, and the CRC-32 of each 512
  * bytes. */
private final class SummedFile(file: File, sums: File, syncs: Boolean, permitted: File => Unit)
    extends OutputStream {
  private val raw = new FileOutputStream(file.toFile)
  private val out = new BufferedOutputStream(raw)
  private val summed = new ByteArrayOutputStream
  private val head = new DataOutputStream(summed)
  private val crc = new CRC32
  private var inChunk = 0
  private var open = true
  head.write(Array[Byte]('c', 'r', 'c', 0))
  head.writeInt(SummedFile.ChunkBytes)
  permitted(file)

  override def write(byte: Int): Unit = write(Array(byte.toByte), 0, 1)

  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    out.write(bytes, offset, length)
    var at = offset
    while (at < offset + length) {
      val n = math.min(offset + length - at, SummedFile.ChunkBytes - inChunk)
      crc.update(bytes, at, n)
      at += n
      inChunk += n
      if (inChunk == SummedFile.ChunkBytes) endChunk()
    }
  }

  private def endChunk(): Unit = {
    head.writeInt(crc.getValue.toInt)
    crc.reset()
    inChunk = 0
  }

  override def flush(): Unit = out.flush()

  override def close(): Unit = if (open) {
    open = false
    try {
      try {
        out.flush()
        if (syncs) raw.getChannel.force(true)
      } finally raw.close()
      if (inChunk > 0) endChunk()
      Files.write(sums, summed.toByteArray)
      permitted(sums)
    } catch { case NonFatal(e) => DiskFiles.discard(e, file, sums) }
  }
}

private object SummedFile {
  val ChunkBytes = 512
}
