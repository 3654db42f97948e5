package org.apache.spark.sql.millpond.changelog

import com.github.luben.zstd.Zstd

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Fills and compresses blocks one after the other. Checks the buffers that a thread keeps for the
  * next blocks. */
object BlockPart extends Part {
  override val name = "block"
  override def fault(point: String): Option[Throwable] = Trial.noMemory(point)

  override def run(trial: Trial): Unit = Trial.inNewThread {
    import trial.{check, equal, random}
    val mine = ChangelogScratch.take()
    val others = ChangelogScratch.take()
    check(others ne mine, "two writers of a thread have the same buffers")
    try {
      (1 to random.between(1, 8)).foreach { _ =>
        val scratch = if (trial.chance(70)) mine else others
        val block = scratch.block
        val size = sizeOf(trial)
        val codec = if (random.nextBoolean()) Codec.None else Codec.Zstd
        trial.step(s"$size bytes with codec $codec")
        val raw = bytes(trial, size)
        if (block.raw.length < size) block.raw = new Array[Byte](size)
        System.arraycopy(raw, 0, block.raw, 0, size)
        block.rawSize = size
        try compress(trial, block, codec, raw)
        catch {
          case _: OutOfMemoryError if trial.hasFailed =>
            trial.step("again")
            compress(trial, block, codec, raw)
        }
      }
    } finally { others.giveBack(others.out); mine.giveBack(mine.out) }
    val next = ChangelogScratch.take()
    check(next eq mine, "a thread's buffers were not given back")
    check(next.block.isSmall, "a large block stays with the thread")
    next.giveBack(
      ChangelogScratch.buffer(if (trial.chance(50)) ChangelogScratch.KeepBytes + 1 else 1 << 10))
    check(next.out.capacity <= ChangelogScratch.KeepBytes, "a large buffer stays with the thread")
    equal(next.out.order, java.nio.ByteOrder.LITTLE_ENDIAN, "the order of a buffer")
  }

  private def compress(trial: Trial, block: Block, codec: Int, raw: Array[Byte]): Unit = {
    block.compress(codec)
    val stored = java.util.Arrays.copyOf(block.stored, block.storedSize)
    trial.check(block.used == codec || block.used == Codec.None,
      s"codec ${block.used} was used for $codec")
    trial.check(block.used != Codec.None || codec == Codec.None || isVaried(raw),
      "a block that repeats itself was not compressed")
    val stays = block.used == Codec.None && block.storedSize == raw.length
    trial.check(block.storedSize < raw.length || stays, "a block became longer")
    val most = ChangelogFormat.mostOfAByte(block.used) * block.storedSize
    trial.check(raw.length <= most, s"a reader takes $most bytes at most from ${block.storedSize}")
    val again = block.used match {
      case Codec.None => stored
      case Codec.Zstd => Zstd.decompress(stored, raw.length)
    }
    trial.check(java.util.Arrays.equals(again, raw), "a block read back differs")
    trial.check(java.util.Arrays.equals(block.raw, 0, raw.length, raw, 0, raw.length),
      "the raw bytes changed")
  }

  /** Returns whether the first kilobytes hardly repeat themselves. */
  private def isVaried(raw: Array[Byte]): Boolean =
    raw.length < 200 || raw.take(4096).distinct.length > 16

  private def sizeOf(trial: Trial): Int = trial.random.nextInt(100) match {
    case n if n < 40 => 1 + trial.random.nextInt(200)
    case n if n < 85 => 1 + trial.random.nextInt(20000)
    case n if n < 95 => ChangelogFormat.BlockBytes - 100 + trial.random.nextInt(200)
    case _ => 1 + trial.random.nextInt(1500000)
  }

  private def bytes(trial: Trial, size: Int): Array[Byte] = {
    val raw = new Array[Byte](size)
    trial.random.nextInt(4) match {
      case 0 => trial.random.nextBytes(raw)
      case 1 => java.util.Arrays.fill(raw, trial.random.nextInt(256).toByte)
      case 2 => raw.indices.foreach(i => raw(i) = (i % 7).toByte)
      case _ => // copies of earlier bytes, between random bytes
        trial.random.nextBytes(raw)
        val run = math.min(size / 2, 64 + trial.random.nextInt(2000))
        if (run > 0) (run until size - run by 2 * run).foreach(at =>
          System.arraycopy(raw, 0, raw, at, run))
    }
    raw
  }
}
