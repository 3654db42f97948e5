/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.JsonNodeFactory

import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore}

/** The rows with the numbers `from`, `from + step` ... below `until`. Tag and number decide the
  * text of each row. A text has `bytes` bytes. Without a tag the command removes the rows. */
private final class Numbered(c: JsonNode) {
  private val from = c.path("from").asLong(0)
  private val step = c.path("step").asLong(1)
  private val bytes = c.path("bytes").asInt(0)
  private val tag = c.path("tag").asText("")
  val until: Long = c.get("until").asLong
  val removes: Boolean = tag.isEmpty
  def has(i: Long): Boolean = i >= from && i < until && (i - from) % step == 0
  def numbers: Iterator[Long] = Iterator.iterate(from)(_ + step).takeWhile(_ < until)
  def text(i: Long): String = {
    val random = new java.util.SplittableRandom(tag.hashCode * 31L + i)
    val out = new StringBuilder(bytes + 32).append(tag).append(' ').append(i).append(' ')
    while (out.length < bytes) out.append(java.lang.Long.toHexString(random.nextLong()))
    out.toString
  }
}

/** Rows (number) -> (text); Python gives only the numbers. */
private[testing] object NumberedRows {
  import RowCodecs.Codec
  private val nodes = JsonNodeFactory.instance

  /** Puts the rows of a layer, or removes them. */
  def put(c: JsonNode, store: StateStore, cf: String, k: Codec, v: Codec): Unit = {
    val layer = new Numbered(c)
    layer.numbers.foreach { i =>
      val key = k.encode(nodes.arrayNode().add(i))
      if (layer.removes) store.remove(key, cf)
      else store.put(key, v.encode(nodes.arrayNode().add(layer.text(i))), cf)
    }
  }

  /** Checks that the store has exactly the rows of these layers, the last one on top. Returns
    * their number. */
  def check(c: JsonNode, store: ReadStateStore, cf: String, k: Codec, v: Codec): Long = {
    val layers = c.get("layers").elements().asScala.map(new Numbered(_)).toSeq.reverse
    def wanted(i: Long): Option[Numbered] = layers.find(_.has(i)).filterNot(_.removes)
    val rows = store.iterator(cf)
    var found = 0L
    try
      rows.foreach { row =>
        val i = k.decode(row.key).get(0).longValue
        val text = v.decode(row.value).get(0).textValue
        val layer =
          wanted(i).getOrElse(throw new AssertionError(s"$i is there, and should not be"))
        if (text != layer.text(i))
          throw new AssertionError(s"$i has the value of another version: ${text.take(40)}")
        found += 1
      }
    finally rows.close()
    val all = layers.map(_.until).max
    val count = Iterator.iterate(0L)(_ + 1).takeWhile(_ < all).count(wanted(_).isDefined)
    if (found != count) throw new AssertionError(s"$found rows, and should be $count")
    found
  }
}
