package org.apache.spark.sql.millpond.engine

import org.apache.spark.sql.millpond.rows.KeyCount

/** The micro-batch that a store runs. It is open from `begin` to `end`, and takes writes until
  * `publish`. Callers hold `monitor`, the store's own: the calls that change something check it.
  * Reads, of which each row makes one, do not. */
private[engine] final class RunningBatch(monitor: AnyRef) {
  private var ownId = ""
  private var open = false
  private var publishing = false
  private var changed = false
  private var before: KeyCount = null

  /** The id of the version that this batch makes, or of the last batch. */
  def id: String = ownId
  def isOpen: Boolean = open
  /** Whether it takes writes: its changelog is not on its way to storage. */
  def isWriting: Boolean = open && !publishing
  /** Whether it created or removed a column family: only a load takes that back. */
  def changedFamilies: Boolean = changed
  /** The live keys when it began. */
  def keysAtStart: KeyCount = before

  def begin(id: String, keys: KeyCount): Unit = {
    check()
    ownId = id
    changed = false
    before = keys
    set(open = true)
  }

  def familyChanged(): Unit = {
    check()
    changed = true
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
    set(open = false)
  }

  private def set(open: Boolean): Unit = if (open != this.open) {
    this.open = open
    if (open) Busy.batchBegins() else Busy.batchEnds()
  }

  private def check(): Unit = assert(Thread.holdsLock(monitor), "without the store's monitor")
}
