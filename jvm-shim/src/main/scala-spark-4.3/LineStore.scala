package org.apache.spark.sql.millpond

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  ReusableIterator, StateStore, SupportsReusableIterator, UnsafeRowPair
}

/** What the write store offers beside the contract that all minor lines share: 4.3 has iterators that are positioned again and again. */
private[millpond] trait LineStore extends StateStore with SupportsReusableIterator {
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
