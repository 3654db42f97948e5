package org.apache.spark.sql.millpond.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStoreErrors, UnsafeRowPair}
import org.apache.spark.sql.millpond.engine.{Session, StoreEngine}
import org.apache.spark.sql.millpond.rows.{Family, FamilyKind}

/** An iterator over a family that can be repositioned. A new position sees all writes so far; until
  * the next one the iterator sees no others. It begins at the start of the family. */
private[provider] final class ReusableScan(engine: StoreEngine, session: Session, f: Family)
    extends Iterator[UnsafeRowPair] with AutoCloseable {
  private var scan = engine.scans.all(session, f, each = false)

  /** Continue at the first row whose ordering columns are at or behind those of `prefix`, and read
    * to the end of the family. */
  def seek(prefix: UnsafeRow): Unit = {
    if (f.kind != FamilyKind.Range)
      throw StateStoreErrors.unsupportedOperationException("refreshAndSeekToPrefix",
        s"a column family of kind ${f.kind.name}")
    scan.close()
    scan = engine.scans.from(session, f, prefix)
  }

  override def hasNext: Boolean = scan.hasNext
  override def next(): UnsafeRowPair = scan.next()
  override def close(): Unit = scan.close()
}
