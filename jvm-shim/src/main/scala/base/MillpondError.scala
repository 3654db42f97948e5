package org.apache.spark.sql.millpond.base

import java.io.IOException
import java.nio.file.AccessDeniedException

import org.apache.spark.SparkException

/** An error with a stable code. `python/src/millpond/errors/table.py` declares the kinds; the build
  * copies the table into the jar. */
class MillpondException(val kind: String, message: String, val hint: String,
    cause: Throwable = null)
    extends SparkException(
      s"[MILLPOND_$kind] $message" + (if (hint.isEmpty) "" else s" Hint: $hint"), cause)

object MillpondError {
  private lazy val table = {
    val in = getClass.getClassLoader.getResourceAsStream("millpond/errors.json")
    try Json.parse(in)
    finally in.close()
  }

  def of(kind: String, message: String, hint: String = "", cause: Throwable = null)
      : MillpondException = {
    val declared = table.get(kind)
    require(declared != null, s"error kind $kind is not declared in millpond/errors/table.py")
    new MillpondException(kind, message,
      if (hint.nonEmpty) hint else declared.path("hint").asText(""), cause)
  }

  def memoryExhausted(bytes: Long, cause: Throwable): MillpondException =
    of("MEMORY_EXHAUSTED", s"the operating system refused $bytes bytes of native memory for state",
      cause = cause)
  /** Java tells some of these errors as that of a file that is not there. */
  def isOutOfFiles(e: Throwable): Boolean = says(e, "Too many open files")
  def isOutOfSpace(e: Throwable): Boolean = says(e, "No space left", "quota exceeded")
  /** Java tells some of these errors by their class alone. */
  def isDenied(e: Throwable): Boolean = e.isInstanceOf[AccessDeniedException] ||
    says(e, "Permission denied", "Operation not permitted", "Read-only file system")
  private def says(e: Throwable, what: String*): Boolean = {
    val text = String.valueOf(e.getMessage)
    what.exists(text.contains)
  }
  /** An error of a file or folder on this executor's own disk. */
  def ofLocalFile(message: String, e: IOException): MillpondException =
    ofFile(kindOf(e, full = "LOCAL_DISK_FULL"), message, e,
      hint = "Let Spark's user write there, free space, or point the option localDir, or Spark's " +
        "spark.local.dir, to another disk.")
  /** @param full the kind of a disk that is full */
  def kindOf(e: IOException, full: String): String =
    if (isOutOfSpace(e)) full else if (isDenied(e)) "STORAGE_DENIED" else "STORAGE_UNAVAILABLE"
  /** An error of a file: of this kind, unless too many files are open. */
  def ofFile(kind: String, message: String, e: Throwable, hint: String = "")
      : MillpondException =
    if (!isOutOfFiles(e)) of(kind, message, hint, cause = e)
    else of("STORAGE_UNAVAILABLE", message,
      hint = "This executor has too many open files. Raise the limit that `ulimit -n` shows for " +
        "it, then restart the query.",
      cause = e)
  def changelogDamaged(path: String, why: String): MillpondException =
    of("CHANGELOG_DAMAGED", s"the changelog $path is damaged: $why.")
  def changelogMissing(path: String, cause: Throwable): MillpondException =
    of("CHANGELOG_MISSING", s"the changelog $path is missing.", cause = cause)
  def formatTooNew(path: String, why: String): MillpondException =
    of("FORMAT_TOO_NEW", s"$path $why.")
  def storeClosed(store: String): MillpondException =
    of("STORE_CLOSED",
      s"maintenance closed the state store $store while a task wanted it; " +
        "Spark retries the task.")
  def sessionEnded(store: String): MillpondException =
    of("STORE_CLOSED",
      s"store $store is used after its commit or abort, or by a task attempt that has ended.")
  def batchSpoilt(store: String, cause: Throwable): MillpondException =
    of("STORE_CLOSED",
      s"store $store takes no more of this batch: a call failed when it had changed rows.",
      hint = "The cause says what failed. Let such errors end the task: Spark tries it again.",
      cause = cause)
  def internal(message: String, cause: Throwable = null): MillpondException =
    of("INTERNAL", message, cause = cause)
}
