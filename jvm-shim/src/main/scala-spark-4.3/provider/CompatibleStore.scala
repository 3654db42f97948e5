package org.apache.spark.sql.millpond.provider

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  ReusableIterator, StateStore, SupportsReusableIterator, UnsafeRowPair
}

/** What the write store offers beside the contract that all minor versions share: 4.3 has iterators
  * that are positioned again and again. */
private[provider] trait CompatibleStore extends StateStore with SupportsReusableIterator {
  protected def reusableScan(colFamilyName: String): ReusableScan

  override def reusableIterator(colFamilyName: String): ReusableIterator[UnsafeRowPair] = {
    val scan = reusableScan(colFamilyName)
    new ReusableIterator[UnsafeRowPair] {
      override def refreshAndSeekToPrefix(prefix: UnsafeRow): Unit = scan.seek(prefix)
      override def hasNext: Boolean = scan.hasNext
      override def next(): UnsafeRowPair = scan.next()
      override def close(): Unit = scan.close()
    }
  }
}
