package org.apache.spark.sql.millpond.observe

import java.util.concurrent.atomic.LongAdder

import scala.jdk.CollectionConverters._

/** What the stores of this JVM have counted since it began. They add to it at the end of a batch,
  * or when something rare happens: never for a single row. */
object Counters {
  val lookups = new LongAdder
  val diskReads = new LongAdder
  val evictedBytes = new LongAdder
  val shrinks = new LongAdder
  val spills = new LongAdder
  val snapshots = new LongAdder
  val snapshotFailures = new LongAdder
  val restores = new LongAdder
  val storageErrors = new LongAdder
  val storesMoved = new LongAdder
  val expiredRows = new LongAdder
  val standbyTakeovers = new LongAdder
  val standbyFailures = new LongAdder
  private val storage =
    Seq("put_requests", "get_requests", "list_requests", "delete_requests", "failed_requests",
      "sent_bytes", "received_bytes").map(_ -> new LongAdder).toMap.asJava

  /** Add what the agent counted under one of its names; others are passed over. */
  def storageUsed(name: String, count: Long): Unit = {
    val adder = storage.get(name)
    if (adder != null) adder.add(count)
  }
  def storageUse(name: String): Long = storage.get(name).sum
}
