package org.apache.spark.sql.millpond.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate
import transformwithstate.statefulprocessor.ImplicitGroupingKeyTracker
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.millpond.base.{KeyPlacement, LimitedReads, MillpondError, PlacedStore}
import org.apache.spark.sql.millpond.engine.{ListLimit, Scan, Session, StoreEngine}
import org.apache.spark.sql.millpond.rows.{Family, FamilyDefinition}
import org.apache.spark.sql.types.StructType

/** What reading and writing have in common. Rows returned are the caller's own. */
private[millpond] trait MillpondReading extends CompatibleReadStore with LimitedReads {
  import MillpondReading.Asked
  def provider: StoreProvider
  def session: Session
  protected def engine: StoreEngine = provider.engine
  protected def readsOnly: Boolean

  // operators use one family for long stretches
  private var lastName: String = null
  private var lastFamily: Family = null
  private var lastGeneration = -1

  protected def family(name: String): Family = {
    if (call != null) endLeft()
    if ((lastName ne name) || lastGeneration != engine.status.generation || lastFamily.removed) {
      lastFamily = engine.family(session, name)
      lastName = name
      lastGeneration = engine.status.generation
    }
    lastFamily
  }

  override def id: StateStoreId = provider.stateStoreId

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    val f = family(colFamilyName)
    val value = engine.rows.get(session, f, key)
    if ((f.validatedBy ne session) && value != null) validate(f, key, value)
    value
  }

  /** Check the first row of a family that a task reads or puts. Internal families are left out:
    * Spark makes their rows, not a user's encoder. When values of list state expire, Spark hands
    * over a key as a row of two fields, however many it has. */
  protected def validate(f: Family, key: UnsafeRow, value: UnsafeRow): Unit = {
    val isExpiring =
      f.name != StateStore.DEFAULT_COL_FAMILY_NAME && key.numFields == 2 &&
        f.rows.keySchema.length != 2
    if (f.shape.plainRows && !f.shape.internal && !isExpiring) {
      StateStoreProvider.validateStateRowFormat(key, f.rows.keySchema, value, f.rows.valueSchema,
        id, provider.conf)
      checkLength(value, f.rows.valueSchema.length)
    }
    f.validatedBy = session
  }

  /** Spark does not look whether the row of another schema ends before its last columns. It would
    * read them from whatever lies behind the row. So this looks even if Spark's checks are off,
    * unless the operator's values have no schema. */
  private def checkLength(value: UnsafeRow, columns: Int): Unit = {
    val least = UnsafeRow.calculateBitSetWidthInBytes(columns) + 8L * columns
    if (value.getSizeInBytes < least && provider.conf.formatValidationCheckValue)
      throw StateStoreErrors.valueRowFormatValidationFailure(
        s"The row has ${value.getSizeInBytes} bytes, but $columns columns take $least",
        id.toString)
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = {
    val f = family(colFamilyName)
    keys.iterator.map(engine.rows.get(session, f, _))
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    engine.rows.values(session, several(colFamilyName, "valuesIterator"), key, most) match {
      case null =>
        isTooLong = true
        Iterator.empty
      case values => values
    }

  private var most = ListLimit.No
  private var isTooLong = false

  override def ofShortList[A](mostValues: Int, mostBytes: Int)(read: => A): Option[A] = {
    most = ListLimit(mostValues, mostBytes)
    isTooLong = false
    try {
      val values = read
      if (isTooLong) None else Some(values)
    } finally most = ListLimit.No
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    closing(engine.scans.all(session, family(colFamilyName), each = false, grouped = readsOnly))
  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    closing(engine.scans.all(session, several(colFamilyName, "iteratorWithMultiValues"),
        each = true,
        grouped = readsOnly))

  override def prefixScan(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val f = prefixed(family(colFamilyName))
    val mark = if (isAsked) Asked else groupingKey
    if (!isAsked && mark != null) call = mark
    lastOfPrefix = engine.scans.ofPrefix(session, f, prefixKey, each = false, mark = mark)
    closing(lastOfPrefix)
  }
  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    closing(engine.scans.ofPrefix(session,
        prefixed(several(colFamilyName, "prefixScanWithMultiValues")), prefixKey, each = true))

  override def rangeScan(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    closing(engine.scans.inRange(session, ordered(family(colFamilyName)), startKey, endKey,
        each = false))
  override def rangeScanWithMultiValues(startKey: Option[UnsafeRow], endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    closing(engine.scans.inRange(session,
        ordered(several(colFamilyName, "rangeScanWithMultiValues")),
        startKey, endKey, each = true))

  private var lastOfPrefix: Scan = null

  /** Nobody reads on with the scan that `prefixScan` began last. Spark's map state hands out its
    * rows without a way to close it, and an open scan keeps what it may still read until the end
    * of the batch. */
  override def endPrefixScan(): Unit = if (lastOfPrefix != null) {
    lastOfPrefix.close()
    lastOfPrefix = null
  }

  private var isAsked = false

  override def marked[A](read: => A): A = {
    isAsked = true
    try read
    finally isAsked = false
  }
  override def endMarked(): Unit = engine.scans.endMarked(session, Asked)

  // the grouping key for which user code began its last scans of a prefix; null: none
  private var call: AnyRef = null

  /** For what `transformWithState` runs user code now. Each call of it has a key that is an object
    * of its own, with few exceptions: small numbers. Null: none runs, or another operator's. */
  private def groupingKey: AnyRef =
    ImplicitGroupingKeyTracker.getImplicitKeyOption.map(_.asInstanceOf[AnyRef]).orNull

  /** End the scans of the call before, once user code works for another key. It gets the rows of a
    * map without a way to close their scan, may leave them midway, and `exists` always does. Until
    * the batch ends, which takes an hour in real-time mode, an open scan keeps every record that is
    * replaced. The operator has taken all that the call gave out when it makes the next one. */
  private def endLeft(): Unit = {
    val now = groupingKey
    if (now != null && (now ne call)) {
      engine.scans.endMarked(session, call)
      call = null
    }
  }

  private def closing(scan: Scan): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(scan, () => scan.close())

  private def prefixed(f: Family): Family =
    if (f.rows.canScanPrefix) f else unsupported("prefixScan", f)
  protected def ordered(f: Family): Family =
    if (f.table.isSorted) f else unsupported("rangeScan", f)
  protected def several(name: String, operation: String): Family = {
    val f = family(name)
    if (f.shape.multi) f else unsupported(operation, f)
  }
  private def unsupported(operation: String, f: Family): Nothing =
    throw StateStoreErrors.unsupportedOperationException(operation,
      s"a column family of kind ${f.kind.name}" +
        (if (f.shape.multi) "" else " with one value per key"))

  override def registerColFamily(colFamilyName: String, keySchema: StructType,
      valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    provider.families.define(session, colFamilyName,
      FamilyDefinition(keySchema, valueSchema, keyStateEncoderSpec, isInternal,
        useMultipleValuesPerKey))

  override def allColumnFamilyNames: Set[String] = engine.familyNames(session)
}

private object MillpondReading {
  /** The mark of scans that answer single calls of a Python worker. */
  private val Asked = new Object
}

private[provider] final class MillpondReadStore(val provider: StoreProvider, val session: Session,
    override val version: Long, val uniqueId: Option[String]) extends ReadOnlyStore
    with MillpondReading {
  override protected def readsOnly: Boolean = true
  override def release(): Unit = provider.end(session)
  override def abort(): Unit = provider.end(session)
}

private[provider] final class MillpondStateStore(val provider: StoreProvider, val session: Session,
    override val version: Long, uniqueId: Option[String], forceSnapshot: Boolean,
    readOnly: Boolean = false) extends CompatibleStore with MillpondReading with PlacedStore {
  override protected def readsOnly: Boolean = readOnly
  private var committed = false
  private var ended = false
  private var info: StateStoreCheckpointInfo = null

  private def checkOpen(): Unit = {
    if (ended) throw MillpondError.sessionEnded(engine.context.label)
    if (readOnly)
      throw StateStoreErrors.unsupportedOperationException("write",
        "a store that was opened for reading only")
  }

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    checkOpen()
    require(key != null && value != null, "state keys and values cannot be null")
    val f = family(colFamilyName)
    if (f.validatedBy ne session) validate(f, key, value)
    engine.rows.write(session, f, key, value)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    checkOpen()
    require(key != null, "a state key cannot be null")
    engine.rows.write(session, family(colFamilyName), key, null)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    checkOpen()
    require(key != null && values != null && values.nonEmpty,
      "state keys and values cannot be null, a list of values cannot be empty")
    engine.rows.write(session, several(colFamilyName, "putList"), key, values)
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    mergeList(key, Array(value), colFamilyName)

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    checkOpen()
    require(key != null && values != null && values.nonEmpty && !values.contains(null),
      "state keys and values cannot be null, a list of values cannot be empty")
    engine.rows.merge(session, several(colFamilyName, "merge"), key, values)
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    checkOpen()
    engine.rows.eraseRange(session, ordered(family(colFamilyName)), beginKey, endKey)
  }

  override protected def reusableScan(colFamilyName: String): ReusableScan = {
    new ReusableScan(engine, session, family(colFamilyName))
  }

  override def createColFamilyIfAbsent(colFamilyName: String, keySchema: StructType,
      valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit = {
    if (!readOnly) checkOpen() // a reader of Spark 4.2 registers its families in this way
    registerColFamily(colFamilyName, keySchema, valueSchema, keyStateEncoderSpec,
      useMultipleValuesPerKey, isInternal)
    if (!readOnly) engine.createFamily(session, colFamilyName)
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    checkOpen()
    provider.families.remove(session, colFamilyName)
  }

  override def place(how: KeyPlacement): Unit = {
    checkOpen()
    provider.place(how)
  }

  /** A session with Spark checkpoint format 1 writes no id into its commit log, so nobody would
    * find the version again; one with format 2 looks for an id that the versions before have not.
    * A reader's session may have any format; it commits nothing. */
  private def checkFormat(): Unit = {
    val asksForIds = provider.conf.enableStateStoreCheckpointIds
    if (engine.context.usesCommitIds != asksForIds)
      throw MillpondError.of(
        "CHECKPOINT_FORMAT_CHANGED",
        s"store ${engine.context.label}: Spark names version $version " +
          (if (asksForIds) "without an id, as in Spark checkpoint format 1, and the session asks " +
            "for format 2"
           else "by an id, as in Spark checkpoint format 2, and the session asks for format 1")
      )
  }

  override def commit(): Long = {
    checkOpen()
    checkFormat()
    val next = provider.commit(session, forceSnapshot)
    committed = true
    ended = true
    val id = engine.synchronized(engine.id)
    val ids = provider.conf.enableStateStoreCheckpointIds
    info = StateStoreCheckpointInfo(provider.stateStoreId.partitionId, next,
      if (ids) Some(id) else None, if (ids) uniqueId else None)
    measured = provider.metrics
    provider.end(session)
    next
  }

  override def abort(): Unit = if (!ended) {
    ended = true
    measured = provider.metrics
    provider.end(session)
  }

  override def release(): Unit = abort()
  override def hasCommitted: Boolean = committed

  // read when the session ends: when Spark asks, the next task may be at work
  private var measured: StateStoreMetrics = null
  override def metrics: StateStoreMetrics = if (measured != null) measured else provider.metrics

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (info == null)
      throw StateStoreErrors.stateStoreOperationOutOfOrder(
        "getStateStoreCheckpointInfo before commit")
    info
  }
}
