"""A query with Millpond's default memory, for `test_memory_limit.py` and `memory_limit.py`.

It counts by key, each key with a long text. First each row is a new key. Then half of the rows are
keys of before, all over the state. It prints a line of JSON for each ten batches, and a last one:
rows of the state, and how often stores went to the disk tier.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the query does.

    Args:
        new_batches: so many micro-batches of new keys alone.
        seconds: so long it goes on afterwards, with keys of before.
        heap_mib: the JVM's maximum.
        is_resident: the whole heap is, from the beginning, as it is after a long run.
        conf: Spark's settings beside the defaults.
    """

    rows_a_batch: int
    text_characters: int
    new_batches: int
    seconds: float = 0
    heap_mib: int = 512
    is_resident: bool = True
    conf: tuple[tuple[str, str], ...] = ()

    @property
    def new_rows(self) -> int:
        """Rows of the state after the new keys."""
        return self.new_batches * self.rows_a_batch

    def text(self) -> str:
        """Return it as an argument of a command."""
        return json.dumps(asdict(self))


def _log_to(work: Path) -> str:
    """Return the option of the JVM that lets Millpond's events go to standard error."""
    settings = work / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.console.ref = console\n"
        "logger.events.name = org.apache.spark.sql.millpond.events\nlogger.events.level = info\n"
        "appender.console.type = Console\nappender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %p %c: %m%n\n"
    )
    return f"-Dlog4j2.configurationFile={settings.as_uri()}"


def main(work: Path, load: Load) -> int:
    """Run the query in a session of its own."""
    touch = f"-Xms{load.heap_mib}m -XX:+AlwaysPreTouch" if load.is_resident else ""
    builder = (
        millpond.configure(SparkSession.builder.master("local[2]").appName("memory-limit"))
        .config("spark.driver.memory", f"{load.heap_mib}m")
        .config("spark.driver.extraJavaOptions", f"{touch} {_log_to(work)}")
        .config("spark.ui.showConsoleProgress", value=False)
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.local.dir", str(work / "local"))
    )
    for name, value in load.conf:
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    number = F.col("value")
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", load.rows_a_batch)
        .option("numPartitions", 2)
        .load()
    )
    is_new = (number < load.new_rows) | (number % 2 == 0)
    key = F.when(is_new, number).otherwise(F.pmod(F.xxhash64("value"), number))
    # a quarter of it is digits that nothing compresses below a half
    digits = [F.sha2(F.concat(key.cast("string"), F.lit(str(i))), 512) for i in range(8)]
    quarter = F.substring(F.concat(*digits), 1, load.text_characters // 4)
    text = F.rpad(quarter, load.text_characters, "pond")
    ends: list[float] = []

    def sink(frame: object, _: int) -> None:
        frame.count()  # type: ignore[attr-defined]
        ends.append(time.monotonic())

    query = (
        numbers.groupBy(key.alias("key"))
        .agg(F.max(text).alias("text"), F.count("*").alias("n"))
        .writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(work / "query"))
        .start()
    )
    told, disk_reads = 0, 0
    seen_batch = -1
    until: float | None = None

    def said() -> dict[str, int]:
        state = query.recentProgress[-1].stateOperators[0]
        return {
            "rows": state.numRowsTotal,
            "batches": len(ends),
            "disk_reads": disk_reads,
            "memory_bytes": state.memoryUsedBytes,
        }

    # Of a batch that is stopped behind its commit Spark tells nothing.
    while until is None or time.monotonic() < until or seen_batch < 0:
        if query.awaitTermination(1):
            return 1
        for progress in query.recentProgress:
            if progress.batchId > seen_batch and progress.stateOperators:
                seen_batch = progress.batchId
                disk_reads += progress.stateOperators[0].customMetrics["millpondDiskReads"]
        if len(ends) >= load.new_batches and until is None:
            until = time.monotonic() + load.seconds
        if len(ends) >= told + 10 and seen_batch >= 0:
            pace = (ends[-1] - ends[told]) / (len(ends) - 1 - told)
            told = len(ends)
            print(json.dumps({**said(), "s_a_batch": round(pace, 2)}), flush=True)
    query.stop()
    print(json.dumps(said()), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    sys.exit(main(Path(sys.argv[1]), Load(**{**given, "conf": tuple(map(tuple, given["conf"]))})))
