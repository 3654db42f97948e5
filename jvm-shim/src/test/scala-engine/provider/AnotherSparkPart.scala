package org.apache.spark.sql.millpond.provider

import java.io.{ByteArrayInputStream, InputStream}
import java.lang.reflect.InvocationTargetException
import java.net.{URL, URLClassLoader}

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.catalyst.plans.logical.{LocalRelation, LogicalPlan}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.millpond.base.BuildInfo
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A jar for another Spark says so by whatever Spark asks it first: its metrics (4.2 and 4.3 begin
  * with different ones) or, in a session with the extension, the first plan of a query. All of it
  * happens on the driver, before a task. */
object AnotherSparkPart extends Part {
  override val name = "another-spark"
  private val Shim = "org.apache.spark.sql.millpond."

  /** The shim's classes once more, with a stamp that says another Spark. */
  private final class Stamped(spark: String)
      extends URLClassLoader(Array[URL](
        BuildInfo.getClass.getProtectionDomain.getCodeSource.getLocation),
        BuildInfo.getClass.getClassLoader) {
    override def loadClass(name: String, resolve: Boolean): Class[_] =
      if (name.startsWith(Shim)) getClassLoadingLock(name).synchronized(
        Option(findLoadedClass(name)).getOrElse(findClass(name)))
      else super.loadClass(name, resolve)
    override def getResourceAsStream(name: String): InputStream =
      if (name == "millpond/build.properties")
        new ByteArrayInputStream(s"spark.version=$spark\n".getBytes("US-ASCII"))
      else super.getResourceAsStream(name)
  }

  override def run(trial: Trial): Unit = {
    val spark = Seq("4.1.0", "4.2.0", "4.2.1-SNAPSHOT", "4.3.0", "4.3.7", "5.0.0")(
      trial.random.nextInt(6))
    trial.step(s"a jar for Spark $spark in Spark $SPARK_VERSION")
    def minor(version: String) = version.split('.').take(2).toSeq
    val fits = minor(spark) == minor(SPARK_VERSION)
    val shim = new Stamped(spark)
    try {
      val provider = shim.loadClass(s"${Shim}MillpondStateStoreProvider")
      Seq("supportedCustomMetrics", "supportedInstanceMetrics").foreach(method =>
        trial.equal(
          kind(provider.getMethod(method).invoke(provider.getConstructor().newInstance())),
          if (fits) "none" else "SHIM_VERSION_MISMATCH", s"the error of $method"))
      val made = shim.loadClass(s"${Shim}driver.WatchStarts").getDeclaredConstructors.head
      made.setAccessible(true)
      val watch = made.newInstance(null: SparkSession).asInstanceOf[LogicalPlan => Unit]
      watch(LocalRelation(Nil)) // a batch query may use the session
      if (!fits)
        trial.equal(kind(watch(LocalRelation(Nil, Nil, isStreaming = true))),
          "SHIM_VERSION_MISMATCH", "the error of the first plan")
    } finally shim.close()
  }

  private def kind(call: => Any): String =
    try { call; "none" }
    catch {
      case e: InvocationTargetException => kind(throw e.getCause)
      case e: Exception if e.getClass.getName == s"${Shim}base.MillpondException" =>
        e.getClass.getMethod("kind").invoke(e).toString
    }
}
