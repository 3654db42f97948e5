package org.apache.spark.sql.millpond.base

/** The classes that users name in Spark's settings (`Entry.scala`). */
object Names {
  val Provider = "MillpondStateStoreProvider"
  val ProviderClass: String = "org.apache.spark.sql.millpond." + Provider
  val ExtensionClass = "org.apache.spark.sql.millpond.MillpondExtension"
}
