package org.apache.spark.sql.millpond.bench

import java.net.URI
import java.util.concurrent.ConcurrentLinkedQueue

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FSDataOutputStream, FileStatus, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable

/** `slow:/x` is the local directory `/x` behind requests of a fixed latency, every one of which is noted. A call is one request, a rename two: an
  * object storage has none and must copy and delete. Its Hadoop client makes at least so many, most of the time more (it looks before it writes). */
class SlowFileSystem extends RawLocalFileSystem {
  private var latencyMs = 0L

  override def getScheme: String = "slow"
  override def getUri: URI = URI.create("slow:///")
  override def initialize(uri: URI, conf: Configuration): Unit = {
    super.initialize(uri, conf)
    latencyMs = conf.getLong("fs.slow.latency.ms", 0L)
  }

  private def asked[T](operation: String, path: Path)(work: => T): T = {
    val nested = SlowFileSystem.depth.get
    if (nested == 0) request(operation, path)
    SlowFileSystem.depth.set(nested + 1)
    try work
    finally SlowFileSystem.depth.set(nested)
  }

  private def request(operation: String, path: Path): Unit = {
    SlowFileSystem.calls.add(s"${System.currentTimeMillis} $operation ${path.toUri.getPath}")
    Thread.sleep(latencyMs)
  }

  // the local one looks for owner and rights, by a path that must be of file:
  private def plain(s: FileStatus): FileStatus = new FileStatus(s.getLen, s.isDirectory, 1, s.getBlockSize, s.getModificationTime, s.getPath)

  // a process, chmod, for each file otherwise; an object storage has none
  override def setPermission(path: Path, permission: FsPermission): Unit = ()

  override def open(path: Path, bufferSize: Int): FSDataInputStream = asked("open", path)(super.open(path, bufferSize))
  override def create(path: Path, overwrite: Boolean, bufferSize: Int, replication: Short, blockSize: Long, progress: Progressable): FSDataOutputStream =
    asked("create", path)(super.create(path, overwrite, bufferSize, replication, blockSize, progress))
  override def create(path: Path, permission: FsPermission, overwrite: Boolean, bufferSize: Int, replication: Short, blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    asked("create", path)(super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress))
  override def rename(from: Path, to: Path): Boolean = asked("copy", from) { request("delete", from); super.rename(from, to) }
  override def delete(path: Path, recursive: Boolean): Boolean = asked("delete", path)(super.delete(path, recursive))
  override def listStatus(path: Path): Array[FileStatus] = asked("list", path)(super.listStatus(path).map(plain))
  override def mkdirs(path: Path): Boolean = asked("mkdirs", path)(super.mkdirs(path))
  override def mkdirs(path: Path, permission: FsPermission): Boolean = asked("mkdirs", path)(super.mkdirs(path, permission))
  override def getFileStatus(path: Path): FileStatus = asked("stat", path)(plain(super.getFileStatus(path)))
}

object SlowFileSystem {
  private val calls = new ConcurrentLinkedQueue[String]
  private val depth = ThreadLocal.withInitial[Int](() => 0)

  /** The calls since the last time, one a line: time in ms, operation, path. */
  def take(): String = {
    val lines = new StringBuilder
    var line = calls.poll()
    while (line != null) { lines.append(line).append('\n'); line = calls.poll() }
    lines.toString
  }
}
