// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.lang.management.ManagementFactory
import java.nio.file.{Files, Path, Paths}

import javax.management.ObjectName

import scala.jdk.CollectionConverters._

/**
 * Bytes that became durable below a directory: in new files, and in files written again under an
 * old name.
 */
private final class Durable(directory: Path) {
  private var seen: Map[String, (Long, Long)] = list()
  private def list(): Map[String, (Long, Long)] = {
    val walk = Files.walk(directory)
    try walk.iterator().asScala.filter(Files.isRegularFile(_))
        .map(p => p.toString -> ((Files.size(p), Files.getLastModifiedTime(p).toMillis))).toMap
    finally walk.close()
  }
  def newBytes(): Long = {
    val now = list()
    val bytes =
      now.iterator.collect { case (name, state) if !seen.get(name).contains(state) => state._1 }.sum
    seen = now
    bytes
  }
}

/**
 * Memory in bytes. The JVM touches the whole heap from the start (`AlwaysPreTouch`, `Xms` = `Xmx`).
 * So resident memory beyond the heap is native. Of the heap only what lives after a full collection
 * counts. `children` is the resident memory of child processes: of Millpond's agent.
 */
private final case class Memory(heapLive: Long, native: Long, children: Long) {
  def total: Long = heapLive + native + children
  def toJava: java.util.Map[String, Long] = Map("heap_live" -> heapLive, "native" -> native,
    "children" -> children, "total" -> total).asJava
}

private object Memory {
  def settled(): Memory = {
    val bean = ManagementFactory.getMemoryMXBean
    System.gc()
    System.gc() // the second call collects what the reference processing of the first one let go
    trimNative()
    val heap = bean.getHeapMemoryUsage
    val children =
      ProcessHandle.current().descendants().iterator().asScala.map(c => residentBytes(c.pid())).sum
    Memory(heap.getUsed, residentBytes(ProcessHandle.current().pid()) - heap.getCommitted, children)
  }

  /**
   * Gives freed native memory back to the system (JDK 17.0.9 and newer). Otherwise a measure could
   * reuse, unseen, what the warm-up let go.
   */
  private def trimNative(): Unit = {
    val server = ManagementFactory.getPlatformMBeanServer
    val command = new ObjectName("com.sun.management:type=DiagnosticCommand")
    if (server.getMBeanInfo(command).getOperations.exists(_.getName == "systemTrimNativeHeap"))
      server.invoke(command, "systemTrimNativeHeap", Array.empty[AnyRef], Array.empty[String]): Unit
  }

  private def residentBytes(pid: Long): Long = {
    val status = Paths.get(s"/proc/$pid/status")
    if (!Files.exists(status)) 0L
    else Files.readAllLines(status).asScala.collectFirst {
      case line if line.startsWith("VmRSS:") => line.split("\\s+")(1).toLong * 1024
    }.getOrElse(0L)
  }

  def gcMs(): Long = ManagementFactory.getGarbageCollectorMXBeans.asScala.map(b =>
    math.max(0L, b.getCollectionTime)).sum
}

private object Disk {
  /** What this process had the system write, by the system's count; 0 where it keeps none. */
  def writtenBytes(): Long = {
    val counts = Paths.get("/proc/self/io")
    if (!Files.exists(counts)) 0L
    else Files.readAllLines(counts).asScala.collectFirst {
      case line if line.startsWith("write_bytes:") => line.split(" ")(1).toLong
    }.getOrElse(0L)
  }

  /** Bytes of the files below a directory. A file with several names counts once. */
  def bytesBelow(directory: Path): Long = {
    val walk = Files.walk(directory)
    try walk.iterator().asScala.filter(Files.isRegularFile(_))
        .map(p => Files.getAttribute(p, "unix:ino") -> Files.size(p)).toMap.values.sum
    finally walk.close()
  }

  /** Bytes of deleted files that were below a directory and that this process has mapped, in whole
    * pages. They keep their space. 0 where the system does not tell. */
  def deletedBytes(directory: Path): Long = {
    val maps = Paths.get("/proc/self/maps")
    if (!Files.exists(maps)) 0L
    else Files.readAllLines(maps).asScala.map(_.split(" +", 6)).collect {
      case Array(place, _, _, _, inode, name)
          if name.startsWith(s"$directory/") && name.endsWith(" (deleted)") =>
        val ends = place.split("-").map(java.lang.Long.parseUnsignedLong(_, 16))
        inode -> (ends.last - ends.head)
    }.toMap.values.sum
  }
}

private object Clock {
  def ms(body: => Any): Double = {
    val start = System.nanoTime(); body; (System.nanoTime() - start) / 1e6
  }
}

private object Percentiles {
  /** p50, p90, p99, p999, max and count of nanoseconds, in microseconds. Null: there are none. */
  def us(nanos: Array[Long]): java.util.Map[String, Any] = if (nanos.isEmpty) null
  else {
    val sorted = nanos.sorted
    def at(q: Double): Double = sorted(math.min(sorted.length - 1, (q * sorted.length).toInt)) / 1e3
    Map[String, Any]("p50" -> at(0.5), "p90" -> at(0.9), "p99" -> at(0.99), "p999" -> at(0.999),
      "max" -> sorted.last / 1e3, "count" -> sorted.length).asJava
  }
}
