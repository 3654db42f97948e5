"""Compares every row of the streaming jobs with a batch computation over the same files.

`python -m integration.demo.compare <work>` prints one JSON object: `{job name: Verdict}`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.demo.data import Feeds
from integration.demo.queries import JOBS, Job, batch_reader, without_marker
from integration.demo.session import open_session

SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one job's output relates to the batch result."""

    rows: int  # that the stream wrote, without the marker
    expected: int  # rows of the batch result
    missing: int  # rows that the stream wrote fewer times than the batch result has them
    unexpected: int  # rows that the stream wrote more times than the batch result has them
    samples: tuple[str, ...]  # a few missing or unexpected rows
    source_rows: int  # flights behind the output, counted from the stream's own output
    source_expected: int  # the same number, counted in Python when it wrote the files

    @property
    def equal(self) -> bool:
        return not self.missing and not self.unexpected and self.source_rows == self.source_expected


def compare(job: Job, expected: DataFrame, written: DataFrame, source_expected: int) -> Verdict:
    """Return the differences between two results as multisets of whole rows."""
    columns = expected.columns
    surplus = (
        expected.withColumn("side", F.lit(-1))
        .unionByName(written.select(*columns).withColumn("side", F.lit(1)))
        .groupBy(*columns)
        .agg(
            F.sum("side").alias("surplus"),
            F.count_if(F.col("side") == 1).alias("written"),
            F.count(F.lit(1)).alias("rows"),
        )
    )
    weight = {"hourly": "flights", "sessions": "legs"}.get(job.name)
    flights = F.sum(F.col(weight) * F.col("written")) if weight else F.sum("written")
    totals = surplus.agg(
        F.sum("written").alias("written"),
        F.sum(F.col("rows") - F.col("written")).alias("expected"),
        F.sum(F.when(F.col("surplus") < 0, -F.col("surplus"))).alias("missing"),
        F.sum(F.when(F.col("surplus") > 0, F.col("surplus"))).alias("unexpected"),
        flights.alias("flights"),
    ).first()
    assert totals is not None  # a global aggregate always has one row
    different = (totals["missing"] or 0) + (totals["unexpected"] or 0)
    samples = surplus.where("surplus <> 0").limit(SAMPLES).collect() if different else []
    return Verdict(
        rows=totals["written"] or 0,
        expected=totals["expected"] or 0,
        missing=totals["missing"] or 0,
        unexpected=totals["unexpected"] or 0,
        samples=tuple(str(row.asDict()) for row in samples),
        source_rows=totals["flights"] or 0,
        source_expected=source_expected,
    )


def compare_all(spark: SparkSession, work: Path) -> dict[str, Verdict]:
    """Compare the output of all four jobs below `work`; return the verdicts by job name."""
    feeds = Feeds.load(work / "feeds")
    read = batch_reader(spark, feeds)
    verdicts = {}
    for job in JOBS:
        expected = without_marker(job, job.build(read, feeds.lateness, False))
        # Spark reads the files that the sink's log names. So a file of a killed batch does not
        # count.
        written = without_marker(job, spark.read.parquet(str(work / "out" / job.name)))
        source_expected = feeds.with_tailnum if job.name == "sessions" else feeds.flights
        verdicts[job.name] = compare(job, expected, written, source_expected)
    return verdicts


def main(work: Path) -> int:
    spark = open_session(provider="rocksdb", work=work, streaming=False)
    verdicts = compare_all(spark, work)
    spark.stop()
    print(
        json.dumps(
            {name: asdict(verdict) | {"equal": verdict.equal} for name, verdict in verdicts.items()}
        )
    )
    return 0 if all(verdict.equal for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
