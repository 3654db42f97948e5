package org.apache.spark.sql.millpond

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStoreErrors, UnsafeRowPair}

/** An iterator over a family that can be positioned anew. Between two positions it yields what was there at the first; a new position
  * sees all writes made since. It begins at the start of the family. */
private[millpond] final class ReusableScan(engine: StoreEngine,
    session: MillpondStateStoreProvider.Session, f: Family)
    extends Iterator[UnsafeRowPair] with AutoCloseable {
  private var scan = engine.scan(session, f, each = false)

  /** Continue at the first row whose ordering columns are at or behind those of `prefix`, to the end of the family. */
  def seek(prefix: UnsafeRow): Unit = {
    if (f.kind != FamilyKind.Range) throw StateStoreErrors.unsupportedOperationException(
      "refreshAndSeekToPrefix", s"a column family of kind ${f.kind.name}")
    scan.close()
    scan = engine.scanFrom(session, f, prefix)
  }

  override def hasNext: Boolean = scan.hasNext
  override def next(): UnsafeRowPair = scan.next()
  override def close(): Unit = scan.close()
}
