package org.apache.spark.sql.millpond.changelog

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The buffers of a [[ChangelogWriter]]. Each thread keeps one set for its next commit: fresh
  * memory of this size costs more than its use. `out` is direct: a channel would copy an array into
  * fresh native memory first. */
private[changelog] final class ChangelogScratch {
  private var first = new Block
  private var kept: ByteBuffer = ChangelogScratch.buffer(ChangelogScratch.OutBytes)
  private var taken = false

  def block: Block = first
  def out: ByteBuffer = kept

  def giveBack(out: ByteBuffer): Unit = {
    // one large row must not stay with the thread for good
    if (!first.isSmall) first = new Block
    if (out.capacity <= ChangelogScratch.KeepBytes) kept = out
    taken = false
  }
}

private[changelog] object ChangelogScratch {
  val OutBytes: Int = 256 << 10
  val KeepBytes: Int = 1 << 20
  private val ofThread = ThreadLocal.withInitial[ChangelogScratch](() => new ChangelogScratch)

  def buffer(size: Int): ByteBuffer = ByteBuffer.allocateDirect(size).order(ByteOrder.LITTLE_ENDIAN)

  /** This thread's buffers, or new ones if a writer of this thread has them. */
  def take(): ChangelogScratch = {
    val mine = ofThread.get
    val scratch = if (mine.taken) new ChangelogScratch else mine
    scratch.taken = true
    scratch
  }
}
