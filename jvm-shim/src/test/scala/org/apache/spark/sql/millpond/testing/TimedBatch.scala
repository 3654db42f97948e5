package org.apache.spark.sql.millpond.testing

import java.util.UUID

import com.fasterxml.jackson.databind.JsonNode

/** A command that opens a store may have `ttl_ms` and `now_ms`: then the batch of the command has
  * this time, and the store's operator, number 0, this time to live. Reflection, because the
  * harness is compiled without the shim. */
private[testing] object TimedBatch {
  private val base = "org.apache.spark.sql.millpond.base"
  private lazy val make = Class.forName(s"$base.BatchTtls").getConstructors.head
  private lazy val enter =
    Class.forName(s"$base.TimeToLive").getMethods.find(_.getName == "enter").get

  private def tell(run: String, nowMs: Long, ttlMs: Map[Long, Long]): Unit = {
    enter.invoke(null, make.newInstance(run, Long.box(nowMs), ttlMs).asInstanceOf[AnyRef]): Unit
  }

  def during[T](c: JsonNode, run: UUID)(work: => T): T = if (!c.hasNonNull("ttl_ms")) work
  else {
    tell(run.toString, c.get("now_ms").longValue, Map(0L -> c.get("ttl_ms").longValue))
    try work
    finally tell("", 0L, Map.empty)
  }
}
