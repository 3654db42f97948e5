package org.apache.spark.sql.millpond.changelog

import java.io.{File, IOException}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.Files
import java.util.zip.CRC32

import scala.collection.mutable

import net.jpountz.lz4.LZ4Factory

import org.apache.spark.sql.millpond.base.{Json, MillpondException, Op}
import org.apache.spark.sql.millpond.disk.Scratch
import org.apache.spark.sql.millpond.memory.{Bytes, MemoryBudget}
import org.apache.spark.sql.millpond.rows.{Family, FamilyKind, FamilyShape}
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.unsafe.Platform

/** The writer and the reader of changelogs. The reader reads every written record. The file has the
  * bytes that the format says. The reader refuses a file that is cut, changed, or wrong about its
  * own sizes. A writer or reader that fails or is interrupted leaves nothing. */
object ChangelogPart extends Part {
  private val codecs = Seq(Codec.None, Codec.Zstd)
  private val budget = new MemoryBudget(1L << 30)
  private val kinds = Vector(FamilyKind.Point, FamilyKind.Prefix, FamilyKind.Range,
    FamilyKind.TimeFirst, FamilyKind.TimeLast)
  private val both = Seq(false, true)
  private lazy val families =
    for (kind <- kinds; multi <- both; plain <- both) yield (kind, multi, plain)
  private lazy val made = families.zipWithIndex.map { case ((kind, multi, plain), i) =>
    new Family(s"f$i", i * 13, FamilyShape(kind, internal = false, multi, plain), budget)
  }
  private lazy val native = Platform.allocateMemory(1 << 20)

  override val name = "changelog"
  override def fault(point: String): Option[Throwable] =
    if (point.startsWith("changelog.")) Some(new IOException("Input/output error"))
    else Trial.noMemory(point)
  override def failuresEvery: Int = 8

  override def run(trial: Trial): Unit = Trial.inNewThread {
    import trial.random
    val dir = Scratch.folder("changelog")
    val scratch = ofThread()
    try {
      val file = new File(dir, "a")
      val plan = Plan(trial, file)
      try plan.write()
      catch {
        case _: IOException | _: OutOfMemoryError if trial.hasFailed =>
          trial.step("again")
          nothingLeft(trial, dir, scratch)
          plan.write()
      }
      nothingLeft(trial, dir, scratch)
      try read(trial, plan)
      catch {
        case _: MillpondException | _: OutOfMemoryError if trial.hasFailed =>
          trial.step("read again")
          nothingLeft(trial, dir, scratch)
          read(trial, plan)
      }
      if (trial.failAt == 0) Trial.unheard {
        plan.checkBytes()
        damage(trial, file)
        lies(trial, plan)
        if (random.nextInt(12) == 0) interrupted(trial, dir)
      }
      nothingLeft(trial, dir, scratch)
    } finally Scratch.delete(dir)
  }

  /** Returns the buffers that this thread keeps, if no writer holds them. */
  private def ofThread(): ChangelogScratch = {
    val scratch = ChangelogScratch.take()
    scratch.giveBack(scratch.out)
    scratch
  }

  private def nothingLeft(trial: Trial, dir: File, scratch: ChangelogScratch): Unit = {
    trial.check(ofThread() eq scratch, "the buffers of the thread were not given back")
    val open = Scratch.opened(dir)
    trial.check(open.isEmpty, s"left open: ${open.mkString(", ")}")
  }

  /** A file before it is written: records in blocks. */
  private final case class Plan(trial: Trial, file: File) {
    import trial.{chance, random}
    /** Whether the blocks are LZ4, as earlier versions wrote them. */
    private val isOld = random.nextInt(3) == 0
    private val codec = if (isOld) Codec.None else codecs(random.nextInt(codecs.size))
    val repeats: Boolean = random.nextBoolean()
    /** Whether it is written in parts, and gets its header at the end. */
    private val grows = random.nextBoolean()
    private val filler =
      "y" * (if (chance(2)) 300000 else if (chance(10)) 5000 else random.nextInt(300))
    val header = Json.obj().put("id", "x").put("filler", filler)
    lazy val items: Seq[Item] = Seq.fill(random.nextInt(if (chance(10)) 300 else 15))(item())
    /** Pairs: this number of blocks has this number of records. */
    var ends = Vector(0 -> 0)
    /** The records of each block. */
    var blocks = Vector.empty[Vector[Change]]
    trial.step(s"codec ${if (isOld) Codec.Lz4 else codec}, $items")

    def records: Seq[Change] = items.map(_.change)

    def write(): Unit = {
      ends = Vector(0 -> 0)
      blocks = Vector.empty
      var open = Vector.empty[Change]
      var bytes = 0
      var total = 0L
      def end(): Unit = if (open.nonEmpty) {
        blocks :+= open
        open = Vector.empty
        total += bytes
        bytes = 0
      }
      try {
        val writer = if (grows) ChangelogWriter.withRoom(file, Json.obj(), codec)
        else new ChangelogWriter(file, header, codec, repeats)
        var done = false
        try {
          items.zipWithIndex.foreach { case (item, i) =>
            val c = item.change
            if (open.nonEmpty && bytes + item.room > ChangelogFormat.BlockBytes) end()
            item.write(writer)
            open :+= c
            bytes += raw(c).length
            trial.equal(writer.rawBytes, total + bytes, "the bytes of all records")
            if (item.last) {
              end()
              trial.equal(writer.endBlock(), blocks.size, "the number of blocks")
              ends :+= blocks.size -> (i + 1)
              if (grows) { writer.pause(); ofThread(): Unit }
            }
          }
          end()
          val size = if (grows) writer.finish(header, repeats) else writer.finish()
          trial.equal(size, writer.file.length, "the size")
          done = true
          trial.equal(writer.file == file, !grows || filler.length < 4000, "whether it has moved")
          if (writer.file != file) {
            trial.check(!file.exists, "the file is there twice")
            writer.file.renameTo(file): Unit
          }
        } finally if (!done) writer.discard()
      } catch {
        case e: Throwable =>
          trial.check(file.getParentFile.list.isEmpty, s"a file is still there after $e")
          throw e
      }
      ends :+= (blocks.size + 1) -> items.size
      if (isOld) Files.write(file.toPath, encoded(content, codec = Codec.Lz4, packed = true))
    }

    /** Compares the file with bytes made without the writer, if no codec packs it. */
    def checkBytes(): Unit = if (codec == Codec.None && !isOld) {
      val blanks = if (grows && filler.length < 4000) 4115 - 16 - Json.bytes(header).length else 0
      val wanted = encoded(content, Json.bytes(header) ++ Change.bytes(" " * blanks))
      val same = java.util.Arrays.mismatch(wanted, Files.readAllBytes(file.toPath))
      trial.check(same < 0, s"the file differs from the format at $same")
    }

    /** Returns the raw bytes of each block, and their number of records. */
    def content: Seq[(String, Int)] = blocks.map(b => (b.map(raw(_)).mkString, b.size))

    /** @param claim bytes and records that each block claims and does not have
      * @param packed whether the blocks are LZ4 */
    def encoded(blocks: Seq[(String, Int)], json: Array[Byte] = Json.bytes(header),
        claim: (Int, Int) = (0, 0), codec: Int = Codec.None,
        packed: Boolean = false): Array[Byte] = {
      val out = new java.io.ByteArrayOutputStream
      def sealedPart(bytes: Array[Byte]*): Unit = {
        val crc = new CRC32
        bytes.foreach(crc.update(_))
        out.write(bytes.head)
        out.write(ints(crc.getValue.toInt))
        bytes.tail.foreach(out.write(_))
      }
      sealedPart(Change.bytes("MPCL") ++ Array[Byte](1, 0, if (repeats) 1 else 0, 0) ++
        ints(json.length) ++ json)
      blocks.foreach { case (raw, records) =>
        val bytes = Change.bytes(raw)
        val stored =
          if (packed) LZ4Factory.safeInstance().fastCompressor().compress(bytes) else bytes
        sealedPart(ints(raw.length + claim._1, stored.length, records + claim._2) ++
            Array[Byte](codec.toByte, 0, 0, 0), stored)
      }
      val count = blocks.map(_._2 + claim._2.toLong).sum
      val bytes = blocks.map(_._1.length + claim._1.toLong).sum
      val puts = records.count(_.op == Op.Put).toLong
      sealedPart(ints(0) ++ Change.bytes("MPCE") ++ longs(count, puts, bytes))
      out.toByteArray
    }

    private var filled = 0 // bytes in the block of the next record

    private def item(): Item = {
      val item = if (random.nextInt(200) == 0) lastThatFits() else some()
      val c = item.change
      val bytes = raw(c).length
      filled =
        if (item.last) 0
        else if (filled + item.room > ChangelogFormat.BlockBytes) bytes
        else filled + bytes
      item
    }

    /** Returns a record that just fits into the block, or just does not. */
    private def lastThatFits(): Item = {
      val length = math.max(0, ChangelogFormat.BlockBytes - filled - 44 + random.between(-1, 2))
      Item(Op.Put, "\u0000\u0001\u0002\u0003", Some("z" * length), 0, 0, copied = true, false)
    }

    private def some(): Item = {
      val op = Seq(Op.Put, Op.Put, Op.Merge, Op.Delete)(random.nextInt(4))
      val least = if (chance(50)) 0 else 4
      val key = Change.some(trial, least + random.nextInt(if (chance(10)) 300 else 12))
      val length =
        if (random.nextInt(500) == 0) random.nextInt(400000)
        else if (chance(10)) random.nextInt(3000)
        else if (chance(10)) 120 + random.nextInt(16)
        else random.nextInt(60)
      val value = if (op == Op.Delete) None else Some(Change.some(trial, length))
      val copied = chance(40) && key.length >= 4
      Item(op, key, value, random.nextInt(made.size), random.nextInt(0x10000), copied, chance(5))
    }
  }

  /** A record for the writer, in a reader's form (`copied`) or in a table's.
    * @param last whether its block ends with it */
  private final case class Item(op: Byte, key: String, value: Option[String], family: Int,
      slot: Int, copied: Boolean, last: Boolean) {
    val change: Change = if (copied) Change(op, key, value)
    else {
      val (kind, multi, plain) = families(family)
      val (id, group) = (two(family * 13), two(slot))
      val physical =
        if (kind == FamilyKind.Range || kind == FamilyKind.TimeFirst) two(0xFFFF) + id + key + group
        else group + id + (if (kind == FamilyKind.Point && plain) "\u0000" else "") + key
      val version = if (op == Op.Put && plain && !multi) "\u0000" else ""
      Change(op, physical, value.map(version + _))
    }

    /** The most bytes of the record, by the writer's estimate. The writer does not know yet what
      * stands around the key. A block with less room is full. */
    val room: Int = key.length + value.fold(0)(_.length) + ChangelogFormat.HeadBytes

    def write(writer: ChangelogWriter): Unit = if (copied) change.write(writer)
    else {
      val (f, length) = (made(family), value.fold(0)(_.length))
      val at = native + key.length
      val bytes = Change.bytes(key + value.getOrElse(""))
      Bytes.copy(bytes, Bytes.ArrayOffset, null, native, bytes.length)
      if (op == Op.Put) writer.put(slot, f, native, key.length, at, length)
      else if (op == Op.Merge) writer.merge(slot, f, native, key.length, at, length)
      else writer.delete(slot, f, native, key.length)
    }

    override def toString: String = {
      val how = if (copied) "copy" else s"family $family slot $slot"
      s"$how $op ${key.length} ${value.fold(-1)(_.length)}${if (last) " |" else ""}"
    }
  }

  // ---- the format, as docs/reference/format.md has it -------------------------------------------

  private def two(n: Int): String = Change.text(Array((n >>> 8).toByte, n.toByte))
  private def buffer(bytes: Int) = ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN)
  private def ints(n: Int*): Array[Byte] = n.foldLeft(buffer(4 * n.size))(_.putInt(_)).array
  private def longs(n: Long*): Array[Byte] = n.foldLeft(buffer(8 * n.size))(_.putLong(_)).array
  private def varint(n: Int): String =
    if (n < 128) n.toChar.toString else (n & 127 | 128).toChar.toString + varint(n >>> 7)
  private def sized(bytes: String): String = varint(bytes.length) + bytes
  private def raw(c: Change): String = c.op.toChar.toString + sized(c.key) + c.value.fold("")(sized)

  // ---- reading ----------------------------------------------------------------------------------

  private def read(trial: Trial, plan: Plan): Unit = {
    val path = plan.file.getPath
    val found = mutable.ArrayBuffer.empty[Change]
    val header = new ChangelogReader(path).read((o, b, k, kl, v, vl) =>
      found += Change.read(o, b, k, kl, v, vl): Unit)
    trial.equal(header, plan.header, "the header")
    trial.equal(new ChangelogReader(path).header(), plan.header, "the header alone")
    trial.equal(found.toSeq, plan.records, "what was read")
    // Read block by block, from a random block on.
    val (skipped, before) = plan.ends(trial.random.nextInt(plan.ends.size))
    val cursor = new ChangelogReader(path).cursor()
    try {
      trial.equal(cursor.header, plan.header, "the header of a cursor")
      cursor.skip(skipped)
      val rest = mutable.ArrayBuffer.empty[Change]
      plan.blocks.drop(skipped).foreach { block =>
        val from = rest.size
        trial.check(cursor.next((o, b, k, kl, v, vl) =>
            rest += Change.read(o, b, k, kl, v, vl): Unit), "a block is missing")
        trial.equal(rest.drop(from).toSeq, block, "a block")
      }
      trial.check(!cursor.next((_, _, _, _, _, _) =>
          throw new AssertionError("a record behind the last block")), "a block too many")
      trial.equal(rest.toSeq, plan.records.drop(before), s"what was read behind $skipped blocks")
    } finally cursor.close()
  }

  private def through(cursor: ChangelogCursor): Unit =
    try while (cursor.next((_, _, _, _, _, _) => ())) ()
    finally cursor.close()

  /** Returns the kind of the reader's error for these bytes; "" if it takes them. The reader must
    * not fail in any other way. */
  private def said(trial: Trial, file: File, bytes: Array[Byte], what: => String): String = {
    Files.write(file.toPath, bytes)
    def reader = new ChangelogReader(file.getPath)
    def whole(): Unit = reader.read((_, _, _, _, _, _) => ()): Unit
    val kinds = Seq[() => Unit](() => whole(), () => through(reader.cursor())).map { how =>
      try { how(); "" }
      catch {
        case e: MillpondException => e.kind
        case e: Exception => throw new AssertionError(s"a file $what ends with $e", e)
      }
    }
    trial.check(kinds.distinct.size == 1, s"a file $what: ${kinds.mkString(", ")}")
    trial.check(Set("", "CHANGELOG_DAMAGED", "FORMAT_TOO_NEW")(kinds.head),
      s"a file $what fails with ${kinds.head}")
    kinds.head
  }

  /** Checks that the reader refuses a file that is cut, changed or longer. */
  private def damage(trial: Trial, file: File): Unit = {
    import trial.random
    val whole = Files.readAllBytes(file.toPath)
    val other = new File(file.getPath + "-other")
    def refused(bytes: Array[Byte], what: => String): Unit =
      trial.check(said(trial, other, bytes, what).nonEmpty, s"a file $what was read")
    val times = if (whole.length > 20000) 1 else 5
    Seq.fill(times)(random.nextInt(whole.length)).foreach(n =>
      refused(whole.take(n), s"cut at $n of ${whole.length}"))
    (1 to times).foreach { _ =>
      val at = if (random.nextBoolean()) random.nextInt(whole.length)
      else math.max(0, whole.length - 1 - random.nextInt(60))
      val changed = whole.clone()
      changed(at) = (changed(at) ^ (1 << random.nextInt(8))).toByte
      refused(changed, s"with a bit changed at $at of ${whole.length}")
    }
    refused(whole ++ Array.fill(1 + random.nextInt(50))(random.nextInt(256).toByte),
      "with something behind it")
  }

  /** Lets the reader read blocks whose sums are right, and whose content is wrong. */
  private def lies(trial: Trial, plan: Plan): Unit = {
    import trial.random
    val other = new File(plan.file.getPath + "-lies")
    val blocks = plan.content
    val header = Json.bytes(plan.header)
    (1 to (if (blocks.map(_._1.length).sum > 20000) 1 else 4)).foreach { _ =>
      val changed = blocks.map { case (raw, n) =>
        val bytes = Change.bytes(raw)
        (1 to random.between(1, 4)).foreach { _ =>
          bytes(random.nextInt(bytes.length)) = random.nextInt(256).toByte
        }
        Change.text(bytes) -> n
      }
      said(trial, other, plan.encoded(changed), "with other bytes and right sums"): Unit
    }
    if (blocks.nonEmpty) {
      val wrong = 1 + random.nextInt(1 << 20)
      val codec = random.nextInt(3)
      Seq(wrong, Int.MaxValue - (1 << 20)).foreach { more =>
        val what = s"whose blocks claim $more bytes more, with codec $codec"
        val bytes = plan.encoded(blocks, claim = (more, 0), codec = codec)
        trial.check(said(trial, other, bytes, what).nonEmpty, s"a file $what was read")
      }
      def kind(bytes: Array[Byte], wanted: String): Unit =
        trial.equal(said(trial, other, bytes, s"for $wanted"), wanted, "the error")
      kind(plan.encoded(blocks, claim = (0, 1)), "CHANGELOG_DAMAGED")
      kind(plan.encoded(blocks, codec = 3 + random.nextInt(100)), "FORMAT_TOO_NEW")
    }
    if (header.length < 1000) {
      val at = random.nextInt(header.length)
      val json = header.updated(at, random.nextInt(256).toByte)
      val bytes = plan.encoded(blocks, json)
      said(trial, other, bytes, s"with another byte at $at of its header"): Unit
    }
  }

  /** Interrupts a thread that writes. The buffers must be free afterwards. */
  private def interrupted(trial: Trial, dir: File): Unit = {
    import trial.random
    val long = random.nextBoolean()
    val value = new Array[Byte](if (long) 4 << 20 else ChangelogFormat.BlockBytes / 2)
    random.nextBytes(value)
    val big = Change(Op.Put, "\u0000\u0000\u0000\u0000", Some(Change.text(value)))
    val after = random.nextInt(8)
    val file = new File(dir, "interrupted")
    val writer = new ChangelogWriter(file, Json.obj().put("id", "x"), Codec.Zstd)
    try {
      (0 to 9).foreach { i =>
        if (i == after) Thread.currentThread.interrupt()
        big.write(writer)
      }
      writer.finish()
      throw new AssertionError("the writer did not notice the interruption")
    } catch {
      case e @ (_: IOException | _: InterruptedException) => trial.step(s"interrupted: $e")
    }
    if (trial.chance(50)) Thread.currentThread.interrupt() // once more, before the clean-up
    val again = Thread.currentThread.isInterrupted
    writer.discard()
    trial.check(Thread.interrupted() || !again, "an interruption was lost")
    trial.check(!file.exists, "the file of the interrupted writer is still there")
  }
}
