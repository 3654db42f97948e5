package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.rows.{KeyCount, StoreLayout}

/** The micro-batch that a store runs. It is open from `begin` to `end`, and takes writes until
  * `publish`. Callers hold `monitor`, the store's own: the calls that change something check it.
  * Reads, of which each row makes one, do not. */
private[engine] final class RunningBatch(monitor: AnyRef) {
  private var ownId = ""
  private var open = false
  private var publishing = false
  private var changed = false
  private var failure: Throwable = null
  private var liveKeys: KeyCount = null

  /** The id of the version that this batch makes, or of the last batch. */
  def id: String = ownId
  def isOpen: Boolean = open
  /** Whether it takes writes: its changelog is not on its way to storage. */
  def isWriting: Boolean = open && !publishing
  /** Whether it created or removed a column family: only a load takes that back. */
  def changedFamilies: Boolean = changed
  /** The first call that failed when it had changed something; null: none. */
  def spoiltBy: Throwable = failure
  /** The live keys, as its writes leave them. */
  def keys: KeyCount = liveKeys

  /** @param keys live keys of the version on which it begins; the batch does not change them */
  def begin(id: String, keys: KeyCount): Unit = {
    check()
    ownId = id
    changed = false
    failure = null
    liveKeys = keys.copy
    open = true
  }

  /** Count a row of a slot that the batch wrote. */
  def count(slot: Int, before: Boolean, after: Boolean): Unit = if (liveKeys.isKnown) {
    if (after && !before) liveKeys.add(slot, 1)
    else if (before && !after) liveKeys.add(slot, -1)
  }

  /** The batch wrote a row blindly: nobody knows how many keys there are now. */
  def loseCount(layout: StoreLayout): Unit =
    if (liveKeys.isKnown) liveKeys = KeyCount.unknown(layout)

  def familyChanged(): Unit = {
    check()
    changed = true
  }

  /** The caller of a task sees an error, and its change is there all the same, or a part of it. */
  def spoil(why: Throwable): Unit = {
    check()
    if (failure == null) failure = why
  }

  /** Its changelog is complete and goes to storage. */
  def publish(): Unit = {
    check()
    publishing = true
  }

  /** Storage has answered, or failed. */
  def published(): Unit = {
    check()
    publishing = false
  }

  /** It is committed or taken back; nothing happens if none is open. */
  def end(): Unit = {
    check()
    open = false
  }

  private def check(): Unit = assert(Thread.holdsLock(monitor), "without the store's monitor")
}
