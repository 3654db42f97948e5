package org.apache.spark.sql.millpond.base

/** The names that users write: classes in Spark's settings (`Entry.scala`), a logger. */
object Names {
  val Provider = "MillpondStateStoreProvider"
  val ProviderClass: String = "org.apache.spark.sql.millpond." + Provider
  val EventsLogger: String = "org.apache.spark.sql.millpond." + "events"
  val LogFilesClass: String = "org.apache.spark.sql.millpond." + "MillpondLogFiles"
  val ExtensionClass = "org.apache.spark.sql.millpond.MillpondExtension"
}
