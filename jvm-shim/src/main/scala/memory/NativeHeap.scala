package org.apache.spark.sql.millpond.memory

import java.io.IOException
import java.lang.management.ManagementFactory
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path}
import java.util.concurrent.atomic.AtomicLong
import javax.management.{JMException, ObjectName}

import com.sun.management.OperatingSystemMXBean

import org.apache.spark.internal.Logging
import org.apache.spark.sql.millpond.base.Seams

/** Gives memory back to the system that the process has freed. The C library keeps much of it:
  * beside compactions of RocksDB a tenth of all that a small container has. In a container that may
  * end the process. */
private[millpond] object NativeHeap extends Logging {
  private val PeriodNs = 10000000000L
  private val FullPercent = 75
  private val commands = new ObjectName("com.sun.management:type=DiagnosticCommand")
  private val trimming = "systemTrimNativeHeap" // of OpenJDK from 17.0.9 on, with glibc
  private val status = Path.of("/proc/self/status")
  private val lastNs = new AtomicLong(System.nanoTime)

  /** A store has flushed, or maintenance has passed. Every ten seconds at most this looks whether
    * memory is short. */
  def rest(): Unit = {
    val (now, last) = (System.nanoTime, lastNs.get)
    if (now - last > PeriodNs && Seams.director == null && lastNs.compareAndSet(last, now) &&
      ownBytes > limitBytes / 100 * FullPercent) trim(): Unit
  }

  /** Returns what the JVM says of it; none if it cannot. */
  def trim(): Option[String] =
    try {
      val server = ManagementFactory.getPlatformMBeanServer
      val can = server.isRegistered(commands) &&
        server.getMBeanInfo(commands).getOperations.exists(_.getName == trimming)
      val said =
        if (can) Some(server.invoke(commands, trimming, Array.empty[AnyRef], Array.empty[String]))
        else None
      said.foreach(text => logDebug(s"$text"))
      said.map(_.toString)
    } catch {
      case e: JMException =>
        logDebug("the JVM gave no memory back", e)
        None
    }

  /** Memory that the system can take from nobody else; 0 if it does not tell. */
  private def ownBytes: Long =
    try {
      val lines = new String(Files.readAllBytes(status), StandardCharsets.US_ASCII).linesIterator
      lines.find(_.startsWith("RssAnon:")).fold(0L)(_.filter(_.isDigit).toLong << 10)
    } catch { case _: IOException => 0L }

  /** Of the container, else of the machine. */
  private def limitBytes: Long = ManagementFactory.getOperatingSystemMXBean match {
    case system: OperatingSystemMXBean => system.getTotalMemorySize
    case _ => Long.MaxValue
  }
}
