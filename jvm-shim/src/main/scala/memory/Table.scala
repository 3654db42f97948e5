package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.{Op, RowLimit, Seams}
import org.apache.spark.unsafe.Platform

/** The memory tier of one column family: a hash table from encoded key to encoded
  * value over an [[Arena]].
  *
  * The first write of a micro-batch copies a record: the one that was there stays as it is.
  * So `rollback` (of a batch, or of the last committed version) only points the slots back. An
  * iterator reads the records that it captured, whatever is written meanwhile. The list of touched
  * records is the write buffer: a key appears once in the changelog, however often it was put.
  *
  * Not thread-safe; the store serialises. Addresses returned are valid until the next write or
  * rollback. */
final class Table(budget: MemoryBudget, shape: TableShape) extends WrittenRecords(budget, shape) {
  import HashSlots.HashAt
  import Records._

  private val chained = shape == TableShape.Chained
  private val sorted = shape == TableShape.Sorted
  private[memory] val slots = new HashSlots(budget, header)
  private[memory] val chains = if (chained) new PrefixChains(budget, header) else null
  private[memory] val index = if (sorted) new SortedIndex((record, base, offset, length) =>
    Bytes.compare(null, record + header, keyLength(record), base, offset, length))
  else null
  private[memory] var absent = 0 // of the records

  private var batch = 1
  private[memory] var epoch = 0
  private var openIterators = 0
  private var retired = false
  private var hand = 0 // where the last eviction stopped
  private var purged = -1 // the last round of `purgeAbsent` was for this version
  private var missed = false // the disk tier told of absent keys since
  private[memory] var detached: TouchList = null
  // records that only a version needed to which no rollback returns
  private[memory] var garbage: TouchList = null
  private[memory] var garbageAt = 0
  // a commit would wait for all stamps: the records of these two lists get theirs later, and stay
  // until then
  private var detachedVersion = 0
  private var isStamped = false // those of `detached`
  private var garbageVersion = 0
  // records that the batch replaced while an iterator may hold them
  private[memory] var parked = new LongList

  private var knowsAll = true
  // since the loading began, the table lost a record that the disk tier may have
  private var mayLack = false

  /** Whether a key that has no record here is certainly absent from the store. */
  def complete: Boolean = knowsAll

  /** The disk tier may have rows that memory lacks, from now on. */
  def lack(): Unit = { knowsAll = false; mayLack = true }

  /** All rows of the disk tier whose keys have no record will be admitted, one by one,
    * until `endLoading`. */
  def beginLoading(): Unit = mayLack = false
  def endLoading(): Unit = if (!mayLack) knowsAll = true

  /** Keys that memory knows to be there. */
  def presentCount: Int = slots.records - absent
  def isEmpty: Boolean = slots.records == 0
  def isSorted: Boolean = sorted
  def usedBytes: Long = arena.allocatedBytes + slots.usedBytes +
    (if (chained) chains.usedBytes else 0L) + (if (sorted) index.usedBytes else 0L)
  /** The part of `usedBytes` that records fill. */
  def liveBytes: Long = arena.liveBytes + slots.usedBytes +
    (if (chained) chains.liveBytes else 0L) + (if (sorted) index.usedBytes else 0L)
  def hasDetached: Boolean = detached != null
  /** Whether an iterator is open: nothing can be evicted. */
  def isScanned: Boolean = openIterators > 0

  // ---- reading ----------------------------------------------------------------------------------

  /** Address of the key's record, or 0. */
  def find(base: AnyRef, offset: Long, length: Int, hash: Int): Long =
    slots.find(base, offset, length, hash)

  /** As `HashSlots.touch`. */
  def touch(hash: Int): Long = slots.touch(hash)

  // ---- writing ----------------------------------------------------------------------------------

  /** Remember what the disk tier has (or has not: `valueLength` -1) for a key
    * that has no record. */
  def admit(base: AnyRef, offset: Long, length: Int, hash: Int, keySlot: Int, prefixLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int, stamp: Int): Long = {
    val record =
      enter(base, offset, length, hash, keySlot, prefixLength, valueBase, valueOffset, valueLength)
    Platform.putInt(null, record + StampAt, stamp)
    if (valueLength < 0) missed = true
    record
  }

  /** Put (`valueLength` >= 0) or delete (-1) a key whose record is `found` (0: none; then `keySlot`
    * and `prefixLength` are used). If memory is refused, nothing has changed.
    * @param tail the last four bytes of the value, if they do not lie behind the others; or -1 */
  def write(base: AnyRef, offset: Long, length: Int, hash: Int, found: Long, keySlot: Int,
      prefixLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int,
      appended: Boolean = false, tail: Long = NoTail): Unit =
    if (found == 0L) {
      touched.reserve()
      val record = enter(base, offset, length, hash, keySlot, prefixLength, valueBase, valueOffset,
        valueLength, tail)
      Platform.putInt(null, record + BatchAt, batch)
      if (!knowsAll) setFlag(record, Blind)
      if (appended) setFlag(record, Appended)
      Platform.putInt(null, record + TouchAt, touched.add(record, 0L))
      if (appended) noteAppended(valueLength) else notePut(0L, valueLength)
    } else {
      val inBatch = Platform.getInt(null, found + BatchAt) == batch
      if (inBatch && openIterators == 0 && valueLength <= Platform.getInt(null,
          found + CapacityAt)) {
        notePut(found, valueLength)
        noteAgain(found)
        if (!isPresent(found)) absent -= 1
        if (valueLength > 0)
          putValue(valueAddress(found), valueBase, valueOffset, valueLength, tail)
        Platform.putInt(null, found + ValueLengthAt, valueLength)
        Platform.putShort(null, found + FlagsAt, (flags(found) & Kept | Used | Rewritten).toShort)
        if (valueLength < 0) absent += 1
        // nothing changes
      } else if (!inBatch && hasValue(found, valueBase, valueOffset, valueLength, tail))
        markUsed(found)
      else {
        reserveChange(inBatch)
        val record = create(null, found + header, length, hash, slotOf(found), valueBase,
          valueOffset, valueLength, tail = tail)
        // what the batch did to the key before was no append
        if (appended && !inBatch) setFlag(record, Appended)
        notePut(if (inBatch) found else 0L, valueLength)
        supersede(found, record, hash, inBatch)
      }
    }

  /** Add bytes to the end of the value of a present key. If memory is refused,
    * nothing has changed. */
  def append(found: Long, valueBase: AnyRef, valueOffset: Long, addedLength: Int): Unit = {
    val inBatch = Platform.getInt(null, found + BatchAt) == batch
    val before = valueLength(found)
    val after = Math.addExact(before, addedLength)
    if (inBatch && openIterators == 0 && after <= Platform.getInt(null, found + CapacityAt)) {
      noteAgain(found)
      Bytes.copy(valueBase, valueOffset, null, valueAddress(found) + before, addedLength)
      Platform.putInt(null, found + ValueLengthAt, after)
    } else {
      val hash = Platform.getInt(null, found + HashAt)
      reserveChange(inBatch)
      // room to grow: a batch that appends to a list often appends again
      val record = create(
        null,
        found + header,
        keyLength(found),
        hash,
        slotOf(found),
        null,
        valueAddress(found),
        before,
        math.max(after.toLong,
          math.min(RowLimit.MostBytes.toLong,
            if (inBatch) after * 2L else after + after / 8L)).toInt
      )
      Bytes.copy(valueBase, valueOffset, null, valueAddress(record) + before, addedLength)
      Platform.putInt(null, record + ValueLengthAt, after)
      setFlag(record, if (inBatch) flags(found) & (Appended | Grown) else Appended)
      supersede(found, record, hash, inBatch)
    }
    noteAppended(addedLength)
  }

  /** What the batch did to the key of record `i` of the touch list: `Op.Put`, `Op.Delete`,
    * `Op.Merge` if it only appended, to the value that was there or to none or that the log has,
    * and `merges` allows to say so, or 0: nothing. A delete counts if the key was there when the
    * batch first wrote it, or if nobody knew. What memory learned since is about the record, not
    * about the disk tier. */
  def change(i: Int, merges: Boolean): Byte = {
    val now = touched.current(i)
    if (!isPresent(now)) {
      val old = touched.old(i)
      if (is(now, Told) || (if (old == 0L) is(now, Blind) else isPresent(old))) Op.Delete else 0
    } else if (is(now, Rewritten) && !is(now, Told) && isAsBefore(i, now)) 0
    else if (merges && is(now, if (is(now, Told)) Grown else Appended)) Op.Merge
    else Op.Put // most records end here; the processor's cache lacks the old one, which nobody read
  }

  private def isAsBefore(i: Int, now: Long): Boolean = {
    val old = touched.old(i)
    old != 0L && isPresent(old) && hasValue(old, null, valueAddress(now), valueLength(now))
  }

  /** Reserve what `supersede` needs beside the record. */
  private def reserveChange(inBatch: Boolean): Unit =
    if (!inBatch) touched.reserve()
    else {
      again.reserve()
      if (openIterators > 0) parked.reserve()
    }

  private def supersede(found: Long, record: Long, hash: Int, inBatch: Boolean): Unit = {
    if (inBatch) setFlag(record, flags(found) & Kept | Rewritten)
    Platform.putInt(null, record + BatchAt, batch)
    Platform.putInt(null, record + BirthAt, birth(found))
    try replace(found, record, hash)
    catch { case e: Throwable => free(record); throw e }
    if (inBatch) {
      noteAgain(found)
      val i = Platform.getInt(null, found + TouchAt)
      touched.setCurrent(i, record)
      Platform.putInt(null, record + TouchAt, i)
      if (openIterators == 0) free(found) else parked.add(found)
    } else Platform.putInt(null, record + TouchAt, touched.add(record, found))
  }

  // ---- versions ---------------------------------------------------------------------------------

  /** A new micro-batch begins. `rollback` can no longer take back the last version. */
  def beginBatch(): Unit = {
    dropDetached()
    batch += 1
  }

  /** The changes become version `version`; they stay detachable until the next `beginBatch`. */
  def commitBatch(version: Int): Unit = {
    dropDetached()
    endLog()
    detached = touched
    detachedVersion = version
    isStamped = false
    touched = new TouchList
    batch += 1
  }

  /** Take back what the running batch wrote. Needs no memory. Iterators must have ended. */
  def abortBatch(): Unit = {
    undo(touched)
    touched.clear()
    endLog()
    batch += 1
  }

  /** Take back the last committed version; only while `hasDetached`. Needs no memory.
    * Iterators must have ended. */
  def rollback(): Unit = {
    undo(detached)
    detached = null
    batch += 1
  }

  private def undo(list: TouchList): Unit = {
    var i = list.size - 1
    while (i >= 0) {
      val current = list.current(i)
      val old = list.old(i)
      val hash = Platform.getInt(null, current + HashAt)
      if (old != 0L) replace(current, old, hash)
      else {
        // the warm-up may have skipped a row of the disk tier because of this record
        if (is(current, Blind)) lack()
        remove(current, hash)
      }
      free(current)
      i -= 1
    }
  }

  /** Free the records that only a rollback needed, and stamp those that replaced them. Each new
    * record does it for a few, so that neither the end nor the begin of a batch costs anything. */
  private def dropDetached(): Unit = if (detached != null) {
    reclaim(Int.MaxValue)
    garbage = detached
    garbageVersion = detachedVersion
    garbageAt = 0
    detached = null
  }

  /** Give every committed record its stamp. */
  private def settle(): Unit = {
    reclaim(Int.MaxValue)
    if (detached != null && !isStamped) {
      isStamped = true
      var i = 0
      while (i < detached.size) { stampAs(detached.current(i), detachedVersion); i += 1 }
    }
  }

  private def stampAs(record: Long, version: Int): Unit =
    Platform.putInt(null, record + StampAt, version)

  private def reclaim(count: Int): Unit = if (garbage != null) {
    val end = math.min(garbage.size.toLong, garbageAt.toLong + count).toInt
    while (garbageAt < end) {
      if (garbage.old(garbageAt) != 0L) free(garbage.old(garbageAt))
      stampAs(garbage.current(garbageAt), garbageVersion)
      garbageAt += 1
    }
    if (garbageAt == garbage.size) garbage = null
  }

  // ---- scanning ---------------------------------------------------------------------------------

  /** An iterator begins: returns the epoch after which new keys are unknown to it. Until `endScan`,
    * records are not overwritten. */
  def beginScan(): Int = {
    if (epoch >= MostEpochs && openIterators == 0) forgetBirths()
    openIterators += 1
    epoch += 1
    epoch - 1
  }
  /** No iterator is open, so the next one knows all keys. A store may scan for each row, for days,
    * and numbers of four bytes have an end. */
  private def forgetBirths(): Unit = {
    var i = 0
    while (i < slots.capacity) {
      val record = slots.at(i)
      if (record != 0L) Platform.putInt(null, record + BirthAt, 0)
      i += 1
    }
    forgetBirths(touched)
    if (detached != null) forgetBirths(detached)
    epoch = 0
  }
  private def forgetBirths(list: TouchList): Unit = {
    var i = 0
    while (i < list.size) {
      if (list.old(i) != 0L) Platform.putInt(null, list.old(i) + BirthAt, 0)
      i += 1
    }
  }
  def endScan(): Unit = {
    openIterators -= 1
    if (openIterators == 0) {
      if (retired) close()
      else {
        var i = 0
        while (i < parked.size) { free(parked(i)); i += 1 }
        parked.clear()
        if (sorted) index.viewsEnded()
      }
    }
  }

  /** All records, present or absent; in key order if the table is sorted. */
  def all(): RecordCursor = if (sorted) from(null, 0L, 0) else new ArrayCursor(addresses())

  /** All records, those of one prefix one after the other. Chained tables only. */
  def byPrefix(): RecordCursor = new ArrayCursor(chains.all())

  /** All records as the disk tier would order them: by slot, then by key. */
  def inDiskOrder(): RecordCursor = {
    val all = addresses()
    val order = Array.range(0, all.length)
    KeySort.byComparison(
      order,
      new Array[Int](all.length),
      0,
      all.length,
      (a, b) => {
        val bySlot = Integer.compare(slotOf(all(a)), slotOf(all(b)))
        if (bySlot != 0) bySlot else compareKey(all(a), null, keyAddress(all(b)), keyLength(all(b)))
      }
    )
    new ArrayCursor(order.map(all(_)))
  }

  private[memory] def addresses(): Array[Long] = slots.addresses()

  /** The records whose key begins with these `length` bytes, which must be a whole prefix as
    * `PrefixChains` saw it. */
  def withPrefix(base: AnyRef, offset: Long, length: Int): RecordCursor =
    new ArrayCursor(chains.of(base, offset, length))

  /** The records in key order from the first key at or above the given one (all, if `length` is
    * 0). Sorted tables only. */
  def from(base: AnyRef, offset: Long, length: Int): RecordCursor = {
    val view = index.freeze(base, offset, length)
    // no iterator is open: the caller reads this view before it writes
    if (openIterators == 0) index.viewsEnded()
    view
  }

  /** The order of a record's key and an encoded key. */
  def compareKey(record: Long, base: AnyRef, offset: Long, length: Int): Int =
    Bytes.compare(null, record + header, keyLength(record), base, offset, length)

  // ---- shrinking --------------------------------------------------------------------------------

  /** Make a table of the records that `keep` chooses, and retire this one. Only between batches.
    * Iterators may be open: a read store that becomes a write store keeps them. If memory is
    * refused, this table stays. */
  def rebuild(keep: Long => Boolean, prefixLength: (Long, Int) => Int): Table = {
    require(touched.size == 0, "rebuild in a running batch")
    dropDetached()
    settle()
    val result = new Table(budget, shape)
    var dropped = 0
    var i = 0
    try
      while (i < slots.capacity) {
        val record = slots.at(i)
        if (record != 0L)
          if (keep(record)) {
            val length = keyLength(record)
            val n = result.admit(
              null,
              keyAddress(record),
              length,
              Platform.getInt(null, record + HashAt),
              slotOf(record),
              if (chained) prefixLength(keyAddress(record), length) else 0,
              null,
              if (isPresent(record)) valueAddress(record) else 0L,
              valueLength(record),
              stamp(record)
            )
            Platform.putShort(null, n + FlagsAt, 0)
          } else dropped += 1
        i += 1
      }
    catch { case e: Throwable => result.close(); throw e }
    if (!knowsAll || dropped > 0) result.lack()
    retire()
    result
  }

  /** Drop about `bytes` of records that the disk tier has (stamp at or below `flushed`) and that
    * nobody used since the last round. The next records use their memory. Drops nothing while an
    * iterator is open. Returns the bytes freed. */
  def evict(bytes: Long, flushed: Int): Long = {
    settle()
    val before = arena.liveBytes
    var looked = 0L
    if (openIterators == 0)
      while (looked < 2L * slots.capacity && before - arena.liveBytes < bytes) {
        hand = (hand + 1) & (slots.capacity - 1)
        looked += 1
        val record = slots.at(hand)
        if (record != 0L && Platform.getInt(null, record + BatchAt) != batch && stamp(
            record) <= flushed) {
          if (wasUsed(record)) Platform.putShort(null, record + FlagsAt, 0)
          else { drop(record, hand); lack() }
        }
      }
    before - arena.liveBytes
  }

  private def drop(record: Long, at: Int): Unit = {
    disarrange(record)
    slots.removeAt(at)
    if (!isPresent(record)) absent -= 1
    free(record)
  }

  /** The table has a successor: free it when its last iterator has ended. */
  def retire(): Unit = if (openIterators == 0) close() else retired = true

  /** Forget absent keys whose absence the disk tier knows (stamp at or below `flushed`), if they
    * are many. Between batches, without iterators. A record of the detached version has a later
    * stamp, so it stays. */
  def purgeAbsent(flushed: Int): Unit = {
    val many = absent * 4L > slots.records && absent > Seams.stretch("table.purge", 1024L)
    if (many && (missed || flushed != purged) && touched.size == 0 && openIterators == 0) {
      settle()
      purged = flushed
      missed = false
      var i = 0
      while (i < slots.capacity) {
        val record = slots.at(i)
        if (record != 0L && !isPresent(record) && stamp(record) <= flushed) drop(record, i)
        i += 1
      }
    }
  }

  def close(): Unit = {
    arena.close()
    slots.close()
    if (chained) chains.close()
  }

  // ---- inside -----------------------------------------------------------------------------------

  /** Make a record for a key that has none, and enter it into every index. If memory is refused,
    * nothing has changed. */
  private def enter(base: AnyRef, offset: Long, length: Int, hash: Int, keySlot: Int,
      prefixLength: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int,
      tail: Long = NoTail): Long = {
    slots.reserve()
    val record = create(base, offset, length, hash, keySlot, valueBase, valueOffset, valueLength,
      tail = tail)
    try
      if (chained) chains.link(record, prefixLength)
      else if (sorted) index.insert(record, null, record + header, length)
    catch { case e: Throwable => free(record); throw e }
    slots.insert(record, hash)
    if (valueLength < 0) absent += 1
    record
  }

  private def create(keyBase: AnyRef, keyOffset: Long, keyLength: Int, hash: Int, keySlot: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int, room: Int = 0,
      tail: Long = NoTail): Long = {
    reclaim(2)
    val record = allocate(keyBase, keyOffset, keyLength, hash, keySlot, valueBase, valueOffset,
      valueLength, room, tail)
    Platform.putInt(null, record + BirthAt, epoch)
    record
  }

  /** `record`, of the same key, takes the place of `old`. If memory is refused, nothing has
    * changed; none is needed while no iterator is open. */
  private def replace(old: Long, record: Long, hash: Int): Unit = {
    if (sorted) index.replace(old, record, null, old + header, keyLength(old))
    slots.replace(old, record, hash)
    if (chained) chains.relink(old, record)
    if (!isPresent(old)) absent -= 1
    if (!isPresent(record)) absent += 1
  }

  private def remove(record: Long, hash: Int): Unit = {
    disarrange(record)
    slots.remove(record, hash)
    if (!isPresent(record)) absent -= 1
  }

  /** Remove a record that is part of no version. */
  private[memory] def forget(record: Long): Unit = {
    remove(record, Platform.getInt(null, record + HashAt))
    free(record)
  }

  private def disarrange(record: Long): Unit =
    if (chained) chains.unlink(record)
    else if (sorted) index.remove(record, null, record + header, keyLength(record))
}
