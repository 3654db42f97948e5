package org.apache.spark.sql.millpond

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.concurrent.{
  ExecutionException, Future, Semaphore, SynchronousQueue, ThreadPoolExecutor, TimeUnit
}

import com.github.luben.zstd.Zstd
import net.jpountz.lz4.LZ4Factory

/** Codecs of changelog blocks; numbers are durable. */
object Codec {
  val None = 0
  val Lz4 = 1
  val Zstd = 2
  def of(name: String): Int =
    name match { case "none" => None; case "lz4" => Lz4; case "zstd" => Zstd }
}

/** A block of records on its way into a changelog file: filled raw, then compressed. */
private[millpond] final class Block {
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
    storedSize = if (codec == Codec.None) rawSize else if (codec == Codec.Lz4) lz4() else zstd()
    stored = compressed
    if (codec == Codec.None || storedSize >= rawSize) {
      used = Codec.None
      stored = raw
      storedSize = rawSize
    }
  }

  private def lz4(): Int = {
    val compressor = LZ4Factory.fastestInstance().fastCompressor()
    grow(compressor.maxCompressedLength(rawSize))
    compressor.compress(raw, 0, rawSize, compressed, 0, compressed.length)
  }

  private def zstd(): Int = {
    grow(Zstd.compressBound(rawSize.toLong).toInt)
    val n = Zstd.compressByteArray(compressed, 0, compressed.length, raw, 0, rawSize, 1)
    if (Zstd.isError(n)) throw new IllegalStateException(s"zstd: ${Zstd.getErrorName(n)}")
    n.toInt
  }

  private def grow(size: Int): Unit = {
    // whatever the thread has kept: a test must see the same each time
    if (size > Block.UsualBytes) Seams.at("memory.block")
    if (compressed.length < size) compressed = new Array[Byte](size)
  }

  /** Whether it fits in what a thread keeps. */
  def isSmall: Boolean =
    raw.length <= ChangelogScratch.KeepBytes && compressed.length <= ChangelogScratch.KeepBytes
}

private[millpond] object Block {
  /** Room for what a block usually has, raw or compressed. */
  val UsualBytes: Int = ChangelogFormat.BlockBytes + 4096
}

/** Threads that compress a block while the committing task encodes the next. As many tasks have one at a time as there are pairs of cores:
  * where every core commits, another thread would gain nothing. */
private[millpond] object BlockHelpers {
  private val permits = new Semaphore(Runtime.getRuntime.availableProcessors / 2)
  private val threads = new ThreadPoolExecutor(
    0,
    Int.MaxValue,
    10,
    TimeUnit.SECONDS,
    new SynchronousQueue[Runnable],
    (work: Runnable) => {
      val thread = new Thread(work, "millpond-compress")
      thread.setDaemon(true)
      thread
    }
  )

  private[millpond] def available: Int = permits.availablePermits
  /** Whether the caller has a helper from now on; it must give it back. */
  def take(): Boolean = Seams.director == null && permits.tryAcquire()
  def giveBack(): Unit = permits.release()
  def compress(block: Block, codec: Int): Future[_] =
    threads.submit((() => block.compress(codec)): Runnable)

  def await(job: Future[_]): Unit =
    try { job.get(); () }
    catch { case e: ExecutionException => throw e.getCause }

  /** Wait until the job has let go of its block; nobody wants its result any more. */
  def abandon(job: Future[_]): Unit = {
    var interrupted = false
    while (!job.isDone)
      try { job.get(); () }
      catch {
        case _: ExecutionException => ()
        case _: InterruptedException =>
          interrupted = true // it takes a millisecond, and the block must not be given on before
      }
    if (interrupted) Thread.currentThread.interrupt()
  }
}

/** The buffers of a [[ChangelogWriter]]. Each thread keeps one set for its next commit: fresh memory of this size costs more than what is
  * done with it. `out` is direct: a channel would copy an array into fresh native memory first. */
private[millpond] final class ChangelogScratch {
  private var first = new Block
  private var second: Block = null
  private var kept: ByteBuffer = ChangelogScratch.buffer(ChangelogScratch.OutBytes)
  private var taken = false

  def block: Block = first
  def spare: Block = { if (second == null) second = new Block; second }
  def out: ByteBuffer = kept

  def giveBack(out: ByteBuffer): Unit = {
    // one large row must not stay with the thread for good
    if (!first.isSmall) first = new Block
    if (second != null && !second.isSmall) second = null
    if (out.capacity <= ChangelogScratch.KeepBytes) kept = out
    taken = false
  }
}

private[millpond] object ChangelogScratch {
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
