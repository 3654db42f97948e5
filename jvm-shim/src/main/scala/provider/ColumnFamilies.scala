package org.apache.spark.sql.millpond.provider

import scala.collection.concurrent.TrieMap
import scala.collection.mutable
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.millpond.base.{MillpondError, Names}
import org.apache.spark.sql.millpond.engine.{Session, StoreContext, StoreEngine}
import org.apache.spark.sql.millpond.rows.{
  FamilyCodec, FamilyDefinition, FamilyKind, FamilyShape, PartitionKey
}
import org.apache.spark.sql.types.DataType

/** What Spark said of a store's column families: their schemas, and the order of their keys. The
  * engine has their rows, and forgets them with each load. This gives them their codecs again.
  *
  * @param usesFamilies whether the operator has families besides the default one
  * @param default of the default family */
private[provider] final class ColumnFamilies(engine: StoreEngine, context: StoreContext,
    usesFamilies: Boolean, schemas: Option[StateSchemaProvider], default: FamilyDefinition) {
  import ColumnFamilies.Default

  // guarded by the engine's monitor, both
  private val definitions = mutable.LinkedHashMap(Default -> default)
  // when the running batch began
  private var before: Option[Seq[(String, FamilyDefinition)]] = None
  private val rules = TrieMap.empty[(String, KeyStateEncoderSpec), JsonNode]

  def begin(): Unit = engine.synchronized { before = Some(definitions.toSeq) }

  def committed(): Unit = engine.synchronized { before = None }

  /** The session has ended. Restore the definitions that its batch dropped. Keep new ones, since a
    * reader of Spark 4.2 registers families in this way. */
  def ended(): Unit = engine.synchronized {
    before.foreach(_.foreach { case (name, d) => definitions.getOrElseUpdate(name, d) })
    before = None
  }

  def define(session: Session, name: String, asked: FamilyDefinition): Unit = {
    requireFamilies("create_col_family")
    checkName("create_col_family", name, asked.internal)
    // Spark's state reader takes a join's index by time for a family of the user's
    val definition = engine.synchronized {
      engine.checkHeld(session)
      val stored = engine.families.get(name)
      asked.copy(internal = asked.internal || stored != null && stored.shape.internal)
    }
    ruleOf(name, definition) // ask the agent outside the monitor
    engine.synchronized {
      engine.checkHeld(session)
      val known = definitions.get(name)
      if (engine.families.has(name)) known.foreach(requireSameRows(name, _, definition))
      definitions(name) = definition
      // a definition that does not fit must not block the next load
      try register(name)
      catch {
        case NonFatal(e) =>
          known.fold { definitions.remove(name); () }(definitions(name) = _)
          throw e
      }
    }
  }

  /** Plain rows are stored as they are, so rows of one schema mean nothing under another. Avro rows
    * name their schema, and Spark checks which may follow which. */
  private def requireSameRows(name: String, old: FamilyDefinition, now: FamilyDefinition): Unit =
    if (shapeOf(name, now).plainRows) {
      if (!DataType.equalsStructurally(old.spec.keySchema, now.spec.keySchema,
          ignoreNullability = true))
        throw StateStoreErrors.stateStoreKeySchemaNotCompatible(old.spec.keySchema.toString,
          now.spec.keySchema.toString)
      if (!DataType.equalsStructurally(old.valueSchema, now.valueSchema, ignoreNullability = true))
        throw StateStoreErrors.stateStoreValueSchemaNotCompatible(old.valueSchema.toString,
          now.valueSchema.toString)
    }

  /** After a load: give the store's families their codecs back. One that is dropped gets none: a
    * batch that was taken back may have made it anew in another form, and tries that again. */
  def registerAll(defaultRule: JsonNode): Unit = engine.synchronized {
    rules((Default, default.spec)) = defaultRule
    definitions.keys.toSeq.filterNot(isDropped).foreach(register)
  }

  private def isDropped(name: String): Boolean = {
    val stored = engine.families.get(name)
    stored != null && stored.removed
  }

  private def register(name: String): Unit = engine.synchronized {
    val d = definitions(name)
    val shape = shapeOf(name, d)
    if (!engine.families.has(name)) engine.families.forget(name, shape)
    val known = engine.families.get(name)
    val family =
      if (known != null && known.shape == shape) known
      else {
        if (known != null && !known.wasDroppedBefore)
          throw MillpondError.of("INVALID_ARGUMENT",
            s"column family '$name' of store ${context.label} is stored as ${known.shape}, " +
              s"the query wants $shape.")
        // The former one's deletes are in changelogs, by its number. Nobody gets that before a
        // snapshot holds them.
        val id = nextFamilyId(name)
        if (known != null) engine.families.forgetAll(_ eq known)
        engine.families.add(name, id, shape, onDisk = false)
      }
    if (name == Default) family.exists = true
    if (family.rows == null || !family.rows.isFor(d)) {
      val key = PartitionKey.of(ruleOf(name, d), d.spec.keySchema, FamilyKind.prefixColumns(d.spec),
        engine.layout.groups.maxParallelism)
      family.register(codecOf(name, d, key))
    }
  }

  private def shapeOf(name: String, d: FamilyDefinition): FamilyShape = {
    val plain = context.conf.stateStoreEncodingFormat == "unsaferow" || !usesFamilies ||
      name == Default
    FamilyShape(FamilyKind.of(d.spec), d.internal, d.multi, plain)
  }

  /** How the family's rows are read, if there is such a family. */
  def codecOf(name: String): Option[FamilyCodec] =
    engine.synchronized(definitions.get(name)).map(codecOf(name, _, partitionKey = null))

  private def codecOf(name: String, d: FamilyDefinition, partitionKey: PartitionKey): FamilyCodec =
    new FamilyCodec(shapeOf(name, d), d.spec.keySchema, d.valueSchema, d.spec, usesFamilies,
      schemas, name, partitionKey)

  /** Forget the family until the job creates it again. */
  def remove(session: Session, name: String): Boolean = {
    requireFamilies("remove_col_family")
    checkName("remove_col_family", name, internal = false)
    val existed = engine.removeFamily(session, name)
    if (existed) engine.synchronized {
      engine.checkHeld(session)
      definitions.remove(name): Unit
    }
    existed
  }

  private def requireFamilies(operation: String): Unit = if (!usesFamilies)
    throw StateStoreErrors.unsupportedOperationException(operation,
      s"multiple column families is disabled in ${Names.Provider}")

  private def checkName(operation: String, name: String, internal: Boolean): Unit = {
    if (name.isEmpty || name.trim != name || name == Default)
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    if (!internal && name.startsWith("$"))
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  }

  /** Numbers that became free below the largest stay so: files of retained versions have rows of
    * their former families. */
  private def nextFamilyId(name: String): Int =
    if (name == Default) 0
    else {
      var next = 1
      engine.families.values.forEach(f => next = math.max(next, f.id + 1))
      if (next > FamilyKind.LargestId)
        throw MillpondError.of(
          "UNSUPPORTED",
          s"store ${context.label}: the column family '$name' would be number $next, and keys " +
            s"have room for ${FamilyKind.LargestId}.",
          hint = "Give it the name of one that the store has: that one keeps its number."
        )
      next
    }

  private def ruleOf(name: String, d: FamilyDefinition): JsonNode = rules.getOrElseUpdate(
    (name, d.spec), {
      context.call("partition_key", engine.status.generation) { r =>
        r.put("column_family", name).put("spec", d.spec.getClass.getSimpleName)
        val columns = r.putArray("key_columns")
        d.spec.keySchema.fieldNames.foreach(columns.add)
      }.get("rule")
    }
  )
}

private object ColumnFamilies {
  private val Default = StateStore.DEFAULT_COL_FAMILY_NAME
}
