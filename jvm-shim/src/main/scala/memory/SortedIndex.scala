package org.apache.spark.sql.millpond.memory

import org.apache.spark.sql.millpond.base.Seams

/** The records of a table in the order of their keys: leaves of addresses, and the list of leaves.
  * Keys are compared where the records lie. A view that `freeze` returns never changes: the index
  * copies a leaf that a view may share before it changes it. A call that is refused memory has
  * changed nothing. Without views, `replace` and `remove` need no memory. */
private[memory] final class SortedIndex(
    order: SortedIndex.Order, leafSize: Int = SortedIndex.LeafSize) {
  import SortedIndex._

  private[memory] var leaves = new Array[Leaf](4)
  private[memory] var leafCount = 0
  private var generation = 0L // a view may hold leaves of an older epoch
  private var viewed = false

  def size: Int = {
    var n = 0
    var i = 0
    while (i < leafCount) { n += leaves(i).count; i += 1 }
    n
  }
  def usedBytes: Long = leafCount * (leafSize * 8L + 48L)

  def insert(record: Long, base: AnyRef, offset: Long, length: Int): Unit =
    if (leafCount == 0) {
      val leaf = newLeaf()
      leaf.addresses(0) = record
      leaf.count = 1
      leaves(0) = leaf
      leafCount = 1
    } else {
      val at = leafOf(base, offset, length)
      val leaf = own(at)
      val right = if (leaf.count == leafSize - 1) roomForOne() else null
      insertInto(leaf, positionIn(leaf, base, offset, length), record)
      if (right != null) split(at, right)
    }

  /** `record` takes the place of `old`, which has the same key. */
  def replace(old: Long, record: Long, base: AnyRef, offset: Long, length: Int): Unit = {
    val leaf = own(leafOf(base, offset, length))
    val i = positionIn(leaf, base, offset, length)
    require(i < leaf.count && leaf.addresses(i) == old, "the index lost a record")
    leaf.addresses(i) = record
  }

  def remove(record: Long, base: AnyRef, offset: Long, length: Int): Unit = {
    val at = leafOf(base, offset, length)
    val leaf = own(at)
    val i = positionIn(leaf, base, offset, length)
    require(i < leaf.count && leaf.addresses(i) == record, "the index lost a record")
    System.arraycopy(leaf.addresses, i + 1, leaf.addresses, i, leaf.count - i - 1)
    leaf.count -= 1
    if (leaf.count == 0) {
      System.arraycopy(leaves, at + 1, leaves, at, leafCount - at - 1)
      leafCount -= 1
      leaves(leafCount) = null
    }
  }

  /** The records from the first key at or above the given one (all, if base is null and length
    * 0), as they are now. */
  def freeze(base: AnyRef, offset: Long, length: Int): View = {
    generation += 1
    viewed = true
    val shared = java.util.Arrays.copyOf(leaves, leafCount)
    if (leafCount == 0 || length == 0) new View(shared, 0, 0)
    else {
      val at = leafOf(base, offset, length)
      new View(shared, at, positionIn(shared(at), base, offset, length))
    }
  }

  /** No view is read any more. */
  def viewsEnded(): Unit = viewed = false

  /** The last leaf whose first key is at or below the key; the first one if there is none. */
  private def leafOf(base: AnyRef, offset: Long, length: Int): Int = {
    var low = 0
    var high = leafCount - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      if (order.compare(leaves(middle).addresses(0), base, offset, length) <= 0) low = middle
      else high = middle - 1
    }
    low
  }

  /** The first place in the leaf whose key is at or above the key. */
  private def positionIn(leaf: Leaf, base: AnyRef, offset: Long, length: Int): Int = {
    var low = 0
    var high = leaf.count
    while (low < high) {
      val middle = (low + high) >>> 1
      if (order.compare(leaf.addresses(middle), base, offset, length) < 0) low = middle + 1
      else high = middle
    }
    low
  }

  private def own(at: Int): Leaf = {
    val leaf = leaves(at)
    if (!viewed || leaf.generation == generation) leaf
    else {
      val copy = newLeaf()
      System.arraycopy(leaf.addresses, 0, copy.addresses, 0, leaf.count)
      copy.count = leaf.count
      leaves(at) = copy
      copy
    }
  }

  private def newLeaf(): Leaf = {
    Seams.at("memory.allocate")
    new Leaf(generation, leafSize)
  }

  /** A leaf, and a place for it in the list. */
  private def roomForOne(): Leaf = {
    if (leafCount == leaves.length) {
      Seams.at("memory.allocate")
      leaves = java.util.Arrays.copyOf(leaves, leafCount * 2)
    }
    newLeaf()
  }

  private def insertInto(leaf: Leaf, at: Int, record: Long): Unit = {
    System.arraycopy(leaf.addresses, at, leaf.addresses, at + 1, leaf.count - at)
    leaf.addresses(at) = record
    leaf.count += 1
  }

  private def split(at: Int, right: Leaf): Unit = {
    val left = leaves(at)
    // rows in time order come at the end: a full last leaf stays nearly full
    val keep = if (at == leafCount - 1) leafSize - leafSize / 8 else leafSize / 2
    right.count = left.count - keep
    System.arraycopy(left.addresses, keep, right.addresses, 0, right.count)
    left.count = keep
    System.arraycopy(leaves, at + 1, leaves, at + 2, leafCount - at - 1)
    leaves(at + 1) = right
    leafCount += 1
  }
}

private[memory] object SortedIndex {
  private val LeafSize = 256

  /** Compares the key of a record with another key. It is no function type: those of four arguments
    * box each number, for every comparison. */
  private[memory] trait Order {
    def compare(record: Long, base: AnyRef, offset: Long, length: Int): Int
  }

  private[memory] final class Leaf(val generation: Long, size: Int) {
    val addresses = new Array[Long](size)
    var count = 0
  }

  /** Walks the records of a frozen index in order; 0 at the end. */
  private[memory] final class View(
      leaves: Array[Leaf], startLeaf: Int, startAt: Int) extends RecordCursor {
    private var leaf = startLeaf
    private var at = startAt
    // counts stay too: an index changes a copy of a shared leaf
    override def next(): Long = {
      while (leaf < leaves.length && at >= leaves(leaf).count) { leaf += 1; at = 0 }
      if (leaf >= leaves.length) 0L
      else { at += 1; leaves(leaf).addresses(at - 1) }
    }
  }
}
