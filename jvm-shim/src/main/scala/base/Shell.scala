package org.apache.spark.sql.millpond.base

/** Commands that errors tell to paste into a shell. */
object Shell {

  /** `text` as one word, whatever is in it. */
  def word(text: String): String = "'" + text.replace("'", "'\"'\"'") + "'"
}
