package org.apache.spark.sql.millpond.disk

import java.io._
import java.nio.charset.StandardCharsets
import java.nio.file.{FileSystemException, Files, NoSuchFileException}

import scala.annotation.tailrec
import scala.jdk.CollectionConverters._

import org.rocksdb.{LiveFileMetaData, RocksDB, RocksDBException}

import org.apache.spark.sql.millpond.base.{LocalDirs, MillpondError, Seams}

/** The files of a RocksDB at one moment.
  *
  * RocksDB's own checkpoint is not used. It looks for logs, which we do not write, and may wait for
  * ever for another thread that has just ended an iterator (9.8: a wake-up is lost). */
private object LiveFiles {
  /** Make a folder that RocksDB can open with them; a failure leaves none. Returns what RocksDB
    * says of them. */
  def copy(db: RocksDB, dir: File, target: File): Seq[LiveFileMetaData] =
    try {
      db.disableFileDeletions()
      try {
        val (known, live) = listed(db)
        copy(dir, live.files.asScala, live.manifestFileSize, target)
        known
      } finally db.enableFileDeletions()
    } catch {
      case e: RocksDBException => throw DiskTier.failure(s"a RocksDB checkpoint of $dir failed", e)
    }

  /** The names are asked for in one call, and what is known of the files in another one.
    * Compactions go on meanwhile, so ask until nothing has changed. */
  @tailrec
  private def listed(db: RocksDB): (Seq[LiveFileMetaData], RocksDB.LiveFiles) = {
    val before = LocalRocks.filesOf(db)
    Seams.at("disk.snapshot")
    val live = db.getLiveFiles(true)
    Seams.at("disk.listed")
    val after = LocalRocks.filesOf(db)
    // a compaction may move a file to another level as it is
    if (placed(before) == placed(after)) (after, live) else listed(db)
  }

  private def placed(files: Seq[LiveFileMetaData]): Set[(String, Int)] =
    files.iterator.map(f => (f.fileName, f.level)).toSet

  private def copy(dir: File, names: Iterable[String], manifestBytes: Long, target: File): Unit =
    try {
      Files.createDirectory(target.toPath)
      var done = false
      try {
        names.map(_.stripPrefix("/")).foreach { name =>
          val (from, to) = (new File(dir, name), new File(target, name))
          Seams.at("disk.copy")
          if (name.endsWith(".sst")) link(from, to)
          else if (name.startsWith("MANIFEST-")) {
            write(to, head(from, manifestBytes))
            write(new File(target, "CURRENT"), s"$name\n".getBytes(StandardCharsets.US_ASCII))
          }
        }
        done = true
      } finally if (!done) LocalDirs.delete(target)
    } catch {
      case e @ (_: NoSuchFileException | _: FileNotFoundException)
        if !MillpondError.isOutOfFiles(e) =>
        throw MillpondError.of("LOCAL_FILES_LOST",
          s"the files of the local RocksDB $dir were deleted: $e", cause = e)
      case e: IOException =>
        throw DiskTier.failure(s"a RocksDB checkpoint of $dir failed", e)
    }

  private def link(from: File, to: File): Unit =
    try Files.createLink(to.toPath, from.toPath): Unit
    catch {
      case e: NoSuchFileException => throw e
      // a file system without links
      case _: FileSystemException | _: UnsupportedOperationException =>
        Files.copy(from.toPath, to.toPath): Unit
    }

  /** Not by a channel, which an interrupt of its thread would close. */
  private def head(from: File, bytes: Long): Array[Byte] = {
    val in = new FileInputStream(from)
    try {
      val read = in.readNBytes(Math.toIntExact(bytes))
      if (read.length < bytes) throw new IOException(s"$from ends after ${read.length} bytes")
      read
    } finally in.close()
  }

  private def write(file: File, content: Array[Byte]): Unit = {
    val out = new FileOutputStream(file)
    try out.write(content)
    finally out.close()
  }
}
