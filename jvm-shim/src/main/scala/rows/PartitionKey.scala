package org.apache.spark.sql.millpond.rows

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.catalyst.expressions.{
  BoundReference, CollationAwareMurmur3Hash, Expression, GetStructField, Literal, Pmod,
  UnsafeProjection, UnsafeRow
}
import org.apache.spark.sql.types.StructType

/** From a state key to its key group: the hash with which Spark's shuffle places the row,
  * modulo max parallelism. */
trait PartitionKey {
  /** The group of a state key; -1 if no rule is known. */
  def group(key: UnsafeRow): Int
  /** The group of all keys with this prefix; -1 if they may lie in several. */
  def groupOfPrefix(prefix: UnsafeRow): Int
  /** Whether Spark may have made the key of another one, by which it placed it. */
  def mayBeMade(key: UnsafeRow, lossy: Boolean): Boolean = false
}

object PartitionKey {
  private val Seed = 42

  /** @param rule as the agent's `open` or `partition_key` answers
    * @param prefixColumns number of leading key columns that form the scan prefix, 0 if none */
  def of(
      rule: JsonNode, schema: StructType, prefixColumns: Int, maxParallelism: Int): PartitionKey = {
    val columns =
      schema.fields.indices.map(i => BoundReference(i, schema(i).dataType, schema(i).nullable))
    rule.get("kind").asText match {
      case "whole" => hashed(columns, columns, prefixColumns, maxParallelism)
      case "drop_last" =>
        hashed(columns.dropRight(rule.get("n").asInt), columns, prefixColumns, maxParallelism)
      case "nested" =>
        val path = Iterator.range(0, rule.get("path").size).map(rule.get("path").get(_).asInt).toSeq
        val struct =
          path.tail.foldLeft[Expression](columns(path.head))((e, i) => GetStructField(e, i))
        val fields = struct.dataType.asInstanceOf[StructType].fields.indices.map(i =>
          GetStructField(struct, i))
        val covered = path.head < prefixColumns
        new Hashed(fields, if (covered) fields else Nil, maxParallelism)
      case "none" => Zero
      case _ => Unknown
    }
  }

  private def hashed(used: Seq[Expression], columns: Seq[Expression], prefixColumns: Int,
      maxParallelism: Int): PartitionKey =
    if (used.isEmpty) Zero
    else
      new Hashed(used, if (used.size <= prefixColumns) columns.take(used.size) else Nil,
        maxParallelism)

  private final class Hashed(
      used: Seq[Expression], ofPrefix: Seq[Expression], maxParallelism: Int) extends PartitionKey {
    private def projection(columns: Seq[Expression]) =
      UnsafeProjection.create(Seq(Pmod(CollationAwareMurmur3Hash(columns, Seed),
            Literal(maxParallelism))))
    private val onKey = projection(used)
    private val onPrefix = if (ofPrefix.isEmpty) null else projection(ofPrefix)
    private lazy val ofLossy = MadeKeys.test(used, lossy = true)
    private lazy val ofOthers = MadeKeys.test(used, lossy = false)
    def group(key: UnsafeRow): Int = onKey(key).getInt(0)
    override def mayBeMade(key: UnsafeRow, lossy: Boolean): Boolean = {
      val test = if (lossy) ofLossy else ofOthers
      test != null && test.eval(key)
    }
    def groupOfPrefix(prefix: UnsafeRow): Int =
      if (onPrefix == null) -1 else onPrefix(prefix).getInt(0)
  }

  /** Operators that keep all they have in partition 0: group 0. */
  private object Zero extends PartitionKey {
    def group(key: UnsafeRow): Int = 0
    def groupOfPrefix(prefix: UnsafeRow): Int = 0
  }

  private object Unknown extends PartitionKey {
    def group(key: UnsafeRow): Int = -1
    def groupOfPrefix(prefix: UnsafeRow): Int = -1
  }
}
