package org.apache.spark.sql.millpond.base

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

/** Jackson, as Spark ships it. */
object Json {
  private val mapper = new ObjectMapper

  def obj(): ObjectNode = mapper.createObjectNode()
  def parse(text: String): JsonNode = mapper.readTree(text)
  def parse(bytes: Array[Byte]): JsonNode = mapper.readTree(bytes)
  def parse(in: java.io.InputStream): JsonNode = mapper.readTree(in)
  def bytes(node: JsonNode): Array[Byte] = mapper.writeValueAsBytes(node)
  def text(node: JsonNode): String = mapper.writeValueAsString(node)
  def value(v: Any): JsonNode = mapper.valueToTree[JsonNode](v)
}
