package org.apache.spark.sql.millpond.engine

import java.util.concurrent.atomic.AtomicInteger

/** What this JVM is busy with now. */
private[millpond] object Busy {
  private val commits = new AtomicInteger
  private val batches = new AtomicInteger
  private val cores = Runtime.getRuntime.availableProcessors

  def committing[T](commit: => T): T = {
    commits.incrementAndGet(): Unit
    try commit
    finally commits.decrementAndGet(): Unit
  }

  /** A commit keeps two cores busy, its own and a helper's. */
  def commitsNeedAllCores: Boolean = { val n = commits.get; n > 0 && 2 * n >= cores }

  def batchBegins(): Unit = batches.incrementAndGet(): Unit
  def batchEnds(): Unit = batches.decrementAndGet(): Unit
  def batchesNeedAllCores: Boolean = batches.get >= cores
}
