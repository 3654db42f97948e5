package org.apache.spark.sql.millpond.changelog

import com.github.luben.zstd.Zstd

import org.apache.spark.sql.millpond.base.Seams

/** Codecs of changelog blocks; numbers are durable. */
object Codec {
  val None = 0
  /** Of files of earlier builds: nothing writes it. */
  val Lz4 = 1
  val Zstd = 2
  def of(name: String): Int = name match { case "none" => None; case "zstd" => Zstd }
}

/** A block of records on its way into a changelog file: filled raw, then compressed. */
private[changelog] final class Block {
  var raw = new Array[Byte](Block.UsualBytes)
  var rawSize = 0
  var records = 0
  private var compressed = new Array[Byte](Block.UsualBytes)

  /** What goes into the file: the first `storedSize` bytes of `stored`, encoded as `used` says. */
  var stored: Array[Byte] = raw
  var storedSize = 0
  var used: Int = Codec.None

  def compress(codec: Int): Unit = {
    used = codec
    storedSize = if (codec == Codec.None) rawSize else zstd()
    stored = compressed
    if (codec == Codec.None || storedSize >= rawSize) {
      used = Codec.None
      stored = raw
      storedSize = rawSize
    }
  }

  private def zstd(): Int = {
    grow(Zstd.compressBound(rawSize.toLong).toInt)
    val n = Zstd.compressByteArray(compressed, 0, compressed.length, raw, 0, rawSize, 1)
    if (Zstd.isError(n)) throw new IllegalStateException(s"zstd: ${Zstd.getErrorName(n)}")
    n.toInt
  }

  private def grow(size: Int): Unit = {
    // under a director: a test must see the same each time
    if (size > Block.UsualBytes) Seams.at("memory.block")
    if (compressed.length < size) compressed = new Array[Byte](size)
  }

  /** Whether it fits in what a thread keeps. */
  def isSmall: Boolean =
    raw.length <= ChangelogScratch.KeepBytes && compressed.length <= ChangelogScratch.KeepBytes
}

private[changelog] object Block {
  /** Room for what a block usually has, raw or compressed. */
  val UsualBytes: Int = ChangelogFormat.BlockBytes + 4096
}
