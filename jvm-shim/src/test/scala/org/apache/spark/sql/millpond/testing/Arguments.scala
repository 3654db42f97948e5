/*
 * Copyright 2026 The Millpond Authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 */
package org.apache.spark.sql.millpond.testing

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.JsonNodeFactory

/** What a command of the harness says, and what its answer says. */
private[testing] object Arguments {
  private val nodes = JsonNodeFactory.instance

  def text(c: JsonNode, name: String, default: String): String =
    if (c.hasNonNull(name)) c.get(name).asText else default
  def text(c: JsonNode, name: String): String = {
    require(c.hasNonNull(name), s"'$name' is missing in $c")
    c.get(name).asText
  }
  def flag(c: JsonNode, name: String): Boolean =
    c.hasNonNull(name) && c.get(name).booleanValue
  def id(c: JsonNode): Option[String] =
    if (c.hasNonNull("id")) Some(c.get("id").asText) else None
  def entries(c: JsonNode, name: String): Map[String, String] =
    if (c.hasNonNull(name))
      c.get(name).properties().asScala.map(e => e.getKey -> e.getValue.asText).toMap
    else Map.empty
  def opt(o: Option[String]): JsonNode =
    o.map(nodes.textNode(_): JsonNode).getOrElse(nodes.nullNode)
}
