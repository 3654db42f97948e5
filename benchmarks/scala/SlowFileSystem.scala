package org.apache.spark.sql.millpond.bench

import java.net.URI
import java.util.concurrent.ConcurrentLinkedQueue

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  FSDataInputStream, FSDataOutputStream, FileStatus, Path, RawLocalFileSystem
}
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable

/**
 * `slow:/x` is the local directory `/x` behind requests of a fixed latency. It notes each request.
 *
 * A call is one request, and a rename is two: an object storage cannot rename, so its client must
 * copy and delete. Hadoop's client of an object storage makes at least as many requests, and most
 * of the time more, because it looks before it writes.
 */
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

  // The local status looks for owner and rights, by a path that must be of file:.
  private def plain(s: FileStatus): FileStatus =
    new FileStatus(s.getLen, s.isDirectory, 1, s.getBlockSize, s.getModificationTime, s.getPath)

  // Otherwise each file needs a process, chmod. An object storage needs none.
  override def setPermission(path: Path, permission: FsPermission): Unit = ()

  override def open(path: Path, bufferSize: Int): FSDataInputStream =
    asked("open", path)(super.open(path, bufferSize))
  override def create(path: Path, overwrite: Boolean, bufferSize: Int, replication: Short,
      blockSize: Long, progress: Progressable): FSDataOutputStream =
    asked("create", path)(super.create(path, overwrite, bufferSize, replication, blockSize,
        progress))
  override def create(path: Path, permission: FsPermission, overwrite: Boolean, bufferSize: Int,
      replication: Short, blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    asked("create", path)(super.create(path, permission, overwrite, bufferSize, replication,
        blockSize, progress))
  override def rename(from: Path, to: Path): Boolean =
    asked("copy", from) { request("delete", from); super.rename(from, to) }
  override def delete(path: Path, recursive: Boolean): Boolean =
    asked("delete", path)(super.delete(path, recursive))
  override def listStatus(path: Path): Array[FileStatus] =
    asked("list", path)(super.listStatus(path).map(plain))
  override def mkdirs(path: Path): Boolean = asked("mkdirs", path)(super.mkdirs(path))
  override def mkdirs(path: Path, permission: FsPermission): Boolean =
    asked("mkdirs", path)(super.mkdirs(path, permission))
  override def getFileStatus(path: Path): FileStatus =
    asked("stat", path)(plain(super.getFileStatus(path)))
}

object SlowFileSystem {
  private val calls = new ConcurrentLinkedQueue[String]
  private val depth = ThreadLocal.withInitial[Int](() => 0)

  /** Returns the calls since the last time, one a line: time in ms, operation, path. */
  def take(): String = {
    val lines = new StringBuilder
    var line = calls.poll()
    while (line != null) { lines.append(line).append('\n'); line = calls.poll() }
    lines.toString
  }
}
