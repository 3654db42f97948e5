package org.apache.spark.sql.millpond.driver

import java.lang.reflect.Field

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.millpond.base.MillpondError

/** A field of Spark's that has no other way in. Another build of Spark may lack it. */
private[millpond] object PrivateField {
  /** @param otherwise what cannot be done without it
    * @param instead what helps beside another version of Spark, if anything does */
  def of(owner: Class[_], name: String, otherwise: String, instead: Option[String]): Field =
    try {
      val field = owner.getDeclaredField(name)
      field.setAccessible(true)
      field
    } catch {
      case e: NoSuchFieldException =>
        throw MillpondError.of(
          "UNSUPPORTED",
          s"$otherwise: Spark $SPARK_VERSION has no field $name in ${owner.getName}.",
          "Use a version of Spark that docs/reference/versions.md names" +
            instead.fold("")(", or " + _) + ".",
          cause = e
        )
    }
}
