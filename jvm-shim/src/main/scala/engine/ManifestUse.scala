package org.apache.spark.sql.millpond.engine

import scala.collection.mutable

/** Which manifest a store lives on, and which ones it does not trust. Callers hold the engine's
  * monitor. */
private[engine] final class ManifestUse {
  private var current: Option[String] = None
  // these proved damaged, until a new one replaces them
  private val damaged = mutable.LinkedHashSet.empty[String]

  def excluded: Seq[String] = damaged.toSeq
  def inUse: Option[String] = current

  /** A load begins with this manifest, or with none. */
  def use(manifest: Option[String]): Unit = current = manifest

  /** The manifest in use proved damaged. False if there is none, or if that was known. */
  def exclude(): Boolean = current.exists(damaged.add)

  /** The store wrote a manifest anew. */
  def published(manifest: String): Unit = {
    current = Some(manifest)
    damaged -= manifest
  }

  /** The next load may choose among all again. */
  def trustAll(): Unit = damaged.clear()
}
