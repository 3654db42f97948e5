package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.unsafe.Platform

/** Memory that was freed between pieces that are in use goes back to the system. */
object NativeHeapPart extends Part {
  override val name = "native-heap"
  private val Pieces = 100000
  private val PieceBytes = 1000L
  private val KeptEvery = 1000

  private val Told = """(?s).*\(-(\d+)K\).*""".r

  override def run(trial: Trial): Unit = if (trial.seed == 0L) {
    val pieces = Seq.fill(Pieces) {
      val address = Platform.allocateMemory(PieceBytes)
      Platform.setMemory(address, 1.toByte, PieceBytes)
      address
    }
    val (kept, freed) = pieces.zipWithIndex.partition(_._2 % KeptEvery == KeptEvery - 1)
    freed.foreach(p => Platform.freeMemory(p._1))
    NativeHeap.trim() match {
      case Some(Told(kilobytes)) =>
        val bytes = kilobytes.toLong << 10
        trial.check(bytes > Pieces * PieceBytes * 3 / 4, s"$bytes bytes went back")
      case Some(text) => trial.check(false, text)
      case None => // another JVM, or another C library
    }
    kept.foreach(p => Platform.freeMemory(p._1))
  }
}
