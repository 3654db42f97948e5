/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import java.lang.management.ManagementFactory

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.ReadStateStore
import org.apache.spark.sql.millpond.testing.RowCodecs.Codec

/** Reads a list within limits, and counts what that allocates. */
private[testing] object ShortLists {
  private val memory =
    ManagementFactory.getThreadMXBean.asInstanceOf[com.sun.management.ThreadMXBean]

  /** Answers with the number of values (-1: they were too many), and the bytes allocated. The
    * method is Millpond's own. Reflection, because this file also compiles without it. */
  def read(c: JsonNode, store: ReadStateStore, cf: String, key: Codec): JsonNode = {
    val row = key.encode(c.get("k"))
    val limited = store.getClass.getMethod("ofShortList", classOf[Int], classOf[Int],
      classOf[Function0[_]])
    val values = () => store.valuesIterator(row, cf)
    val before = memory.getCurrentThreadAllocatedBytes
    val found = limited.invoke(store, Int.box(c.get("values").intValue),
      Int.box(c.get("bytes").intValue), values).asInstanceOf[Option[Iterator[UnsafeRow]]]
    val allocated = memory.getCurrentThreadAllocatedBytes - before
    JsonNodeFactory.instance.objectNode().put("values", found.fold(-1)(_.size))
      .put("allocated", allocated): ObjectNode
  }
}
