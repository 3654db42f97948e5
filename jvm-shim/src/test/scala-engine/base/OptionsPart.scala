package org.apache.spark.sql.millpond.base

import java.util.Locale

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** What a user sets, and what it means, in all languages. `tests/unit/test_config.py` has the same
  * for Python's half. */
object OptionsPart extends Part {
  override val name = "options"
  private val Least = BigInt(64L << 10)
  private val Most = BigInt(64L << 40)

  override def run(trial: Trial): Unit = {
    val usual = Locale.getDefault
    // its small letter of I is another one
    if (trial.chance(30)) Locale.setDefault(Locale.forLanguageTag("tr"))
    try { size(trial); text(trial) }
    finally Locale.setDefault(usual)
  }

  private def set(name: String, text: String): Options =
    Options.resolve(Seq(Options.prefix + name -> text, "spark.sql.other" -> "x"))

  private def refused(trial: Trial, name: String, text: String): Unit = {
    val kind =
      try { set(name, text); "none" }
      catch { case e: MillpondException => e.kind }
    trial.equal(kind, "INVALID_OPTION", s"the error of $name='$text'")
  }

  private def size(trial: Trial): Unit = {
    import trial.{chance, random}
    val unit = random.nextInt(5)
    val number =
      if (chance(50)) random.nextLong(1000000000000000000L) else random.nextLong(1L << 26)
    val written = s" $number${if (chance(50)) " " else ""}${"-kmgt"(unit)}".replace("-", "") +
      Seq("", "b", "ib")(random.nextInt(3)) + " "
    val text = if (chance(50)) written.toUpperCase(Locale.ROOT) else written
    val bytes = BigInt(number) << (10 * unit)
    trial.step(s"a size of '$text'")
    if (bytes < Least || bytes > Most) refused(trial, "memory.budget", text)
    else trial.equal(set("memory.budget", text).long("memory.budget"), Some(bytes.toLong), text)
  }

  private def text(trial: Trial): Unit = {
    trial.equal(set("localDir", " /a b\n").string("localDir"), Some("/a b"), "a folder")
    trial.equal(set("snapshot.compression", " ZSTD").string("snapshot.compression"), Some("zstd"),
      "a compression")
    trial.equal(set("commit.fsync", "FALSE ").boolean("commit.fsync"), false, "a truth")
    Seq("localDir" -> "", "agent.python" -> " ", "backend" -> "", "maxParallelism" -> "",
      "memory.budget" -> "", "commit.fsync" -> "").foreach {
      case (name, text) => refused(trial, name, text)
    }
  }
}
