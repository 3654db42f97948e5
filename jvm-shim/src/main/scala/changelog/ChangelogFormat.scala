package org.apache.spark.sql.millpond.changelog

import java.nio.charset.StandardCharsets.UTF_8

private[changelog] object ChangelogFormat {
  val Magic: Array[Byte] = "MPCL".getBytes(UTF_8)
  val FooterMagic: Array[Byte] = "MPCE".getBytes(UTF_8)
  val FormatVersion: Short = 1

  /** Flag of a header: keys may repeat, and merges occur. Files of earlier versions have such
    * records without it. */
  val Repeats: Short = 1
  val BlockBytes: Int = 128 << 10
  private[changelog] val MaxBlockBytes = 1 << 30
  private[changelog] val HeadBytes = 40 // of a record, at most: what is not its key and its value

  /** How many bytes one stored byte can become at most. LZ4: 255, since one more byte of a length
    * adds 255. zstd: a block of 128 KiB takes at least 4 bytes. */
  private[changelog] def mostOfAByte(codec: Int): Long = codec match {
    case Codec.None => 1L
    case Codec.Lz4 => 255L
    case Codec.Zstd => 32768L
    case _ => MaxBlockBytes.toLong // a codec of a newer version: nothing inflates it
  }
}
