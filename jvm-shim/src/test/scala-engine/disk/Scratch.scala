package org.apache.spark.sql.millpond.disk

import java.io.File
import java.nio.file.{Files, NoSuchFileException, Path}

import scala.jdk.CollectionConverters._

import org.rocksdb.{CompressionType, LRUCache, RocksDB}

import org.apache.spark.sql.millpond.testing.Trial

/** Folders for tests of parts. They are in memory if the system can, because RocksDB syncs every
  * file. */
object Scratch {
  val MostWhole = 40L
  private val shm = new File("/dev/shm")
  private val descriptors = new File("/proc/self/fd")
  private val maps = new File("/proc/self/maps")
  private lazy val root: Path = {
    val dir =
      if (shm.isDirectory && shm.canWrite) Files.createTempDirectory(shm.toPath, "millpond-parts")
      else Files.createTempDirectory("millpond-parts")
    sys.addShutdownHook(delete(dir.toFile))
    dir
  }
  lazy val config: DiskConfig = {
    RocksDB.loadLibrary()
    // files of a few rows have a whole index, others one of two levels
    DiskConfig(new LRUCache(1L << 20), CompressionType.LZ4_COMPRESSION, () => MostWhole,
      maps = true)
  }

  def folder(name: String): File = Files.createTempDirectory(root, name).toFile
  def tier(dir: File): DiskTier = new DiskTier(dir, config)
  def readOnly(dir: File): DiskTier = new DiskTier(dir, config, readOnly = true)

  /** Does work with a folder of its own, none of whose files may be open in the end. */
  def within(trial: Trial, name: String)(work: File => Unit): Unit = {
    val dir = folder(name)
    try {
      work(dir)
      val open = opened(dir)
      trial.check(open.isEmpty, s"left open: ${open.mkString(", ")}")
    } finally delete(dir)
  }

  /** Returns this process's open and mapped files below a folder; none if the system cannot
    * tell. */
  def opened(dir: File): Seq[String] = described(dir) ++ mapped(dir)

  def mapped(dir: File): Seq[String] =
    if (!maps.canRead) Nil
    else Files.readAllLines(maps.toPath).asScala.filter(_.contains(s" ${dir.getPath}/")).toSeq

  /** Returns the mappings of files that were below a folder, and are there no more. */
  def replaced(dir: File): Seq[String] = {
    val there = filesBelow(dir).flatMap { file =>
      try Some(Files.getAttribute(file.toPath, "unix:ino").toString)
      catch { case _: NoSuchFileException => None } // a compaction has deleted it
    }.toSet
    mapped(dir).filterNot(mapping => there(mapping.split(" +")(4)))
  }

  private def filesBelow(file: File): Seq[File] =
    Option(file.listFiles).fold(Seq(file))(_.toSeq.flatMap(filesBelow))

  /** Goes on with what helps reads until it is whole, or given up. */
  def finish(lookup: TierLookup, keys: => Int): Unit =
    do while (lookup.step(keys)) ()
    while (lookup.keep())

  /** Lets a tier that nobody uses close its RocksDB. A compaction that has returned may still count
    * as running. */
  def rest(trial: Trial, tier: DiskTier): Unit = {
    val deadline = System.nanoTime + 20000000000L
    tier.rest()
    while (described(tier.dir).nonEmpty) {
      val left = s"nobody uses the tier, and open are ${described(tier.dir).mkString(", ")}"
      trial.check(System.nanoTime < deadline, left)
      Thread.`yield`()
      tier.rest()
    }
  }

  private def described(dir: File): Seq[String] =
    Option(descriptors.listFiles).toSeq.flatMap(_.toSeq).flatMap { fd =>
      try Some(Files.readSymbolicLink(fd.toPath).toString)
      catch { case _: java.io.IOException => None } // the descriptor of the list itself
    }.filter(_.startsWith(dir.getPath + "/"))

  def delete(file: File): Unit = {
    Option(file.listFiles).foreach(_.foreach(delete))
    file.delete(): Unit
  }
}
