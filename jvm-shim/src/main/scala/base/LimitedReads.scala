package org.apache.spark.sql.millpond.base

/** A store for reading that need not read a large state to its end. */
private[millpond] trait LimitedReads {
  /** Nobody reads on with the scan that `prefixScan` began last. */
  def endPrefixScan(): Unit

  /** What `read` gives; None if it asks for the values of a key that has more of them, or more
    * bytes. Those are not copied: whoever asks for a long list with each batch would pay for its
    * length each time. */
  def ofShortList[A](mostValues: Int, mostBytes: Int)(read: => A): Option[A]

  /** What `read` gives. Scans that it begins end with `endMarked`, unless they end before. */
  def marked[A](read: => A): A

  /** Nobody reads on with the scans that were begun in `marked`. */
  def endMarked(): Unit
}

private[millpond] object LimitedReads {
  /** For a store that knows no limits. */
  object Unlimited extends LimitedReads {
    override def endPrefixScan(): Unit = ()
    override def ofShortList[A](mostValues: Int, mostBytes: Int)(read: => A): Option[A] =
      Some(read)
    override def marked[A](read: => A): A = read
    override def endMarked(): Unit = ()
  }
}
