package org.apache.spark.sql.millpond.rows

/** The arithmetic of key groups; the same as `millpond.model.key_groups`, held equal by
  * `tests/vectors/keygroups.json`. */
final case class KeyGroups(maxParallelism: Int, base: Int) {
  private val doublings = Integer.numberOfTrailingZeros(maxParallelism / base)
  require(base > 0 && maxParallelism == base << doublings,
    s"maxParallelism $maxParallelism is not base $base times a power of two")

  /** The group's place in an order in which the groups of a partition stay contiguous when the
    * partition count doubles. */
  def slot(group: Int): Int =
    if (doublings == 0) group
    else ((group % base) << doublings) + (Integer.reverse(group / base) >>> (32 - doublings))

  /** The group of a slot. */
  def group(slot: Int): Int =
    if (doublings == 0) slot
    else
      (slot >>> doublings) + base * (Integer.reverse(
        slot & ((1 << doublings) - 1)) >>> (32 - doublings))
}
