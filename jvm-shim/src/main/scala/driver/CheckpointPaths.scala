package org.apache.spark.sql.millpond.driver

import java.util.UUID

import org.apache.hadoop.fs.Path

/** Where the driver writes and finds Millpond's files in a Spark checkpoint. For Python
  * `python/src/millpond/format/layout.py` says the same. */
private[driver] object CheckpointPaths {
  def millpond(checkpoint: Path): Path = new Path(checkpoint, "millpond")
  def storage(checkpoint: Path): Path = new Path(millpond(checkpoint), "storage.json")
  def claim(checkpoint: Path): Path = new Path(millpond(checkpoint), "claim")
  def asked(checkpoint: Path): Path = new Path(millpond(checkpoint), "asked.json")
  def sink(checkpoint: Path): Path = new Path(millpond(checkpoint), "sink.json")
  def running(checkpoint: Path, run: UUID): Path =
    new Path(millpond(checkpoint), s"running/$run.json")
  def history(checkpoint: Path): Path = new Path(millpond(checkpoint), "history")
}
