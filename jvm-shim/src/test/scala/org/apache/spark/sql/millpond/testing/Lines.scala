package org.apache.spark.sql.millpond.testing

import java.io.FileOutputStream
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import org.apache.spark.sql.{ForeachWriter, Row}

/** A sink that Spark allows in real-time mode. It appends each row to a file of `folder` as it
  * comes, as a line behind the number of its batch. A batch that runs again writes its rows
  * again. */
final class Lines(folder: String) extends ForeachWriter[Row] {
  private var out: FileOutputStream = _
  private var batch = 0L
  override def open(partition: Long, epoch: Long): Boolean = {
    Files.createDirectories(Paths.get(folder))
    out = new FileOutputStream(s"$folder/$partition", true)
    batch = epoch
    true
  }
  override def process(row: Row): Unit =
    out.write(s"$batch ${row.mkString(",")}\n".getBytes(UTF_8))
  override def close(error: Throwable): Unit = if (out != null) out.close()
}
