package org.apache.spark.sql.millpond.driver

import java.util.{Locale, UUID}

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** What the driver reads and writes means the same in all languages of a JVM. `OptionsPart` has it
  * of the options that every JVM reads. */
object LanguagesPart extends Part {
  override val name = "languages"
  // of digits of their own, and with another small letter of I
  private val languages = Seq("en", "fa-IR", "ar-EG-u-nu-arab", "th-TH-u-nu-thai", "tr", "lt")

  override def run(trial: Trial): Unit = {
    val usual = Locale.getDefault
    val language = languages(trial.random.nextInt(languages.size))
    trial.step(language)
    Locale.setDefault(Locale.forLanguageTag(language))
    try { fileOfHistory(trial); timesToLive(trial) }
    finally Locale.setDefault(usual)
  }

  private def fileOfHistory(trial: Trial): Unit = {
    val ms = trial.random.nextLong(10000000000000L)
    val (run, part, batches) = (UUID.randomUUID, trial.random.nextInt(1000000),
      trial.random.nextInt(10000))
    def digits(number: Long, many: Int) = number.toString.reverse.padTo(many, '0').reverse
    trial.equal(History.fileName(ms, run, part, batches),
      s"${digits(ms, 13)}-$run-${digits(part, 6)}-${digits(batches, 4)}.jsonl.gz",
      "a file of the history")
  }

  private def timesToLive(trial: Trial): Unit = {
    val operators = Seq("dedupe", "stateStoreSave").zipWithIndex.map { case (name, id) =>
      TtlOperator(id.toLong, name, None)
    }
    val (unit, ms) = Seq("S" -> 1000L, "MIN" -> 60000L, "H" -> 3600000L)(trial.random.nextInt(3))
    val number = trial.random.between(1L, 100L)
    val found = new TtlOptions(Some(s"$number$unit"), Some("stateStoreSave=OFF"), false, None)
      .resolve(operators)
    trial.equal(found, Map(0L -> number * ms), s"the time to live of $number$unit")
  }
}
