/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.lang.management.ManagementFactory
import java.lang.ref.WeakReference

import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import org.apache.spark.sql.execution.streaming.state.{StateStoreIterator, UnsafeRowPair}

/** Scans a store, and counts what that takes of the heap. */
private[testing] object ScanCosts {
  private val memory =
    ManagementFactory.getThreadMXBean.asInstanceOf[com.sun.management.ThreadMXBean]

  /** Answers with the number of rows read, the most bytes allocated for one of them, and how many
    * of those before the last one the open scan still keeps.
    * @param atMost rows, then the scan is left */
  def read(scan: StateStoreIterator[UnsafeRowPair], atMost: Int): JsonNode = {
    val seen = mutable.ArrayBuffer.empty[WeakReference[AnyRef]]
    var most = 0L
    var before = memory.getCurrentThreadAllocatedBytes
    while (seen.size < atMost && scan.hasNext) {
      val row = scan.next()
      most = math.max(most, memory.getCurrentThreadAllocatedBytes - before)
      seen += new WeakReference(row.value.getBaseObject)
      before = memory.getCurrentThreadAllocatedBytes
    }
    System.gc()
    val kept = seen.dropRight(1).count(_.get != null)
    JsonNodeFactory.instance.objectNode().put("rows", seen.size).put("most", most)
      .put("kept", kept): ObjectNode
  }
}
