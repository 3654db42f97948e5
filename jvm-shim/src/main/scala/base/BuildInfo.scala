package org.apache.spark.sql.millpond.base

import java.util.Properties

import org.apache.spark.SPARK_VERSION

/** The stamp that the build wrote into the jar. */
object BuildInfo {
  private lazy val properties = {
    val p = new Properties
    val in = getClass.getClassLoader.getResourceAsStream("millpond/build.properties")
    try p.load(in)
    finally in.close()
    p
  }

  def millpondVersion: String = properties.getProperty("millpond.version")
  def sparkVersion: String = properties.getProperty("spark.version")

  private def minor(version: String): String = version.split('.').take(2).mkString(".")

  /** Class files fit one minor version of Spark. */
  def check(): Unit =
    if (minor(sparkVersion) != minor(SPARK_VERSION))
      throw MillpondError.of("SHIM_VERSION_MISMATCH",
        s"this Millpond jar was built for Spark ${minor(sparkVersion)}, " +
          s"the running Spark is $SPARK_VERSION.")
}
