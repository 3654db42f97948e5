# SPDX-License-Identifier: Apache-2.0
"""Query level: whole streaming queries on `local[*]`, from `rate-micro-batch` to a noop sink.

`run.py` runs it in a process of its own for each contender, repetition and scenario:
`python -m benchmarks.bench_query <spec.json> <result.json>`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_contenders import Contender
from benchmarks.bench_process import run_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One query: `rows` for each batch and source, `warmup` batches, then `measured` batches.

    Batches of the warm-up do not count.
    """

    name: str
    partitions: int
    rows: int
    warmup: int
    measured: int


SCENARIOS: dict[str, Scenario] = {
    s.name: s
    for s in (
        Scenario(name="aggregation", partitions=8, rows=500_000, warmup=2, measured=3),
        Scenario(name="join", partitions=8, rows=30_000, warmup=5, measured=4),
        Scenario(name="session", partitions=8, rows=50_000, warmup=5, measured=4),
        Scenario(name="pandas", partitions=8, rows=5_000, warmup=2, measured=3),
        Scenario(name="partitions200", partitions=200, rows=1_000, warmup=2, measured=3),
    )
}


def parse(names: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list. Raises: ValueError: one is unknown."""
    wanted = tuple(n.strip() for n in names.split(",") if n.strip())
    unknown = [n for n in wanted if n not in SCENARIOS]
    if unknown:
        raise ValueError(f"unknown scenarios {unknown}; there are {', '.join(SCENARIOS)}")
    return wanted


def scenarios(names: tuple[str, ...], scale: float, *, quick: bool) -> list[Scenario]:
    """Return the scenarios of `names` at a scale, or with the sizes of the smoke test.

    The scale multiplies the rows of a batch, except in the latency case.
    """
    picked = [SCENARIOS[n] for n in names]
    if quick:
        return [
            Scenario(name=s.name, partitions=min(s.partitions, 4), rows=500, warmup=1, measured=1)
            for s in picked
        ]
    return [
        Scenario(
            name=s.name,
            partitions=s.partitions,
            rows=s.rows if s.name == "partitions200" else int(s.rows * scale),
            warmup=s.warmup,
            measured=s.measured,
        )
        for s in picked
    ]


def measure(
    contender: Contender,
    what: Scenario,
    *,
    jar: Path | None,
    work_dir: Path,
    heap_mib: int,
    extra_conf: dict[str, str],
    timeout_s: float,
    java_options: str = "",
) -> dict[str, Any]:
    """Return `{"warmup": n, "batches": [...]}` of one process, with the batches of the warm-up.

    Args:
        java_options: of the JVM. With any, the JVM ends in order, so that it writes a recording.
    Raises: BenchError: the process failed.
    """
    work_dir.mkdir(parents=True)
    conf = session_conf(contender, extra_conf, work_dir=work_dir, heap_mib=heap_mib, jar=jar)
    conf["spark.driver.extraJavaOptions"] = java_options
    checkpoint = (work_dir / "checkpoint").as_uri()
    measured = run_spec(
        [sys.executable, "-m", "benchmarks.bench_query"],
        {
            "conf": conf,
            "scenario": asdict(what),
            "checkpoint": checkpoint,
            "orderly": bool(java_options),
        },
        work_dir=work_dir,
        timeout_s=timeout_s,
    )
    shutil.rmtree(work_dir)
    return measured


def _rate(spark: SparkSession, scenario: Scenario) -> DataFrame:
    """Return a stream of `timestamp` and `value`.

    All rows of a batch have one timestamp, a second later than the batch before. `value` counts up
    over all batches.
    """
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", scenario.rows)
    # Start above the initial watermark, the epoch. Otherwise Spark drops the first rows as late.
    source = source.option("startTimestamp", 1_000_000).option("advanceMillisPerBatch", 1000)
    return source.option("numPartitions", 2).load()


def _aggregation_keys(spark: SparkSession, scenario: Scenario) -> DataFrame:
    """Return a stream with the same `rows` distinct keys in every batch: inserts, then updates."""
    from pyspark.sql import functions as f

    return _rate(spark, scenario).select((f.col("value") % scenario.rows).alias("key"))


def aggregation(spark: SparkSession, scenario: Scenario) -> tuple[DataFrame, str]:
    return _aggregation_keys(spark, scenario).groupBy("key").count(), "update"


def _join(spark: SparkSession, scenario: Scenario) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as f

    # A right row matches the left row of the batch before. State holds about four batches of each
    # side.
    left = _rate(spark, scenario).select(f.col("value").alias("lk"), f.col("timestamp").alias("lt"))
    right = _rate(spark, scenario).select(
        (f.col("value") - scenario.rows).alias("rk"), f.col("timestamp").alias("rt")
    )
    near = f.expr("lk = rk AND rt BETWEEN lt AND lt + INTERVAL 2 SECONDS")
    return left.withWatermark("lt", "1 second").join(
        right.withWatermark("rt", "1 second"), near
    ), "append"


def _session(spark: SparkSession, scenario: Scenario) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as f

    # A key comes back in a batch with probability 0.4. So some sessions grow, and Spark evicts
    # those that close.
    keyed = _rate(spark, scenario).withColumn(
        "key", f.pmod(f.hash("value"), f.lit(2 * scenario.rows))
    )
    windows = keyed.withWatermark("timestamp", "1 second").groupBy(
        f.session_window("timestamp", "2500 milliseconds"), "key"
    )
    return windows.count(), "append"


def _pandas(spark: SparkSession, scenario: Scenario) -> tuple[DataFrame, str]:
    import pandas
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counts(StatefulProcessor):  # two state calls a key
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            seen = self._count.get()
            count = (seen[0] if seen else 0) + sum(len(frame) for frame in rows)
            self._count.update((count,))
            yield pandas.DataFrame({"key": [key[0]], "n": [count]})

        def close(self) -> None: ...

    keyed = _aggregation_keys(spark, scenario).groupBy("key")
    counts = keyed.transformWithStateInPandas(
        Counts(), "key long, n long", outputMode="Update", timeMode="None"
    )
    return counts, "update"


_QUERIES: dict[str, Callable[[SparkSession, Scenario], tuple[DataFrame, str]]] = {
    "aggregation": aggregation,
    "join": _join,
    "session": _session,
    "pandas": _pandas,
    "partitions200": aggregation,
}


def batch(progress: dict[str, Any]) -> dict[str, Any]:
    operators = progress["stateOperators"]
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "trigger_ms": progress["durationMs"]["triggerExecution"],
        "add_batch_ms": progress["durationMs"]["addBatch"],
        "state_rows": sum(o["numRowsTotal"] for o in operators),
        "state_rows_updated": sum(o["numRowsUpdated"] for o in operators),
        "state_rows_removed": sum(o["numRowsRemoved"] for o in operators),
        "state_commit_ms_all_tasks": sum(o["commitTimeMs"] for o in operators),
        "state_update_ms_all_tasks": sum(o["allUpdatesTimeMs"] for o in operators),
        "state_memory_bytes": sum(o["memoryUsedBytes"] for o in operators),
    }


def _run(
    spark: SparkSession, scenario: Scenario, checkpoint: str, deadline_s: float = 900.0
) -> list[dict[str, Any]]:
    spark.conf.set("spark.sql.shuffle.partitions", scenario.partitions)
    frame, mode = _QUERIES[scenario.name](spark, scenario)
    wanted = scenario.warmup + scenario.measured
    query = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        found = progress_of(query, wanted, scenario.name, seconds=deadline_s)
        return [batch(p) for p in found]
    finally:
        query.stop()


def progress_of(
    query: StreamingQuery, wanted: int, name: str, *, seconds: float, pause_s: float = 0.2
) -> list[dict[str, Any]]:
    """Return Spark's progress of the first `wanted` batches with rows, once they are there.

    Args:
        pause_s: between two looks. Each serialises all progress, so look seldom.

    Raises:
        TimeoutError: they are not there in time.
        StreamingQueryException: the query failed.
    """
    end = time.monotonic() + seconds
    while True:
        found = [p for p in (json.loads(p.json) for p in query.recentProgress) if p["numInputRows"]]
        if len(found) >= wanted:
            return found[:wanted]
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: {len(found)} of {wanted} batches after {seconds:.0f} s")
        time.sleep(pause_s)


def session_conf(
    contender: Contender,
    extra_conf: dict[str, str],
    *,
    work_dir: Path,
    heap_mib: int,
    jar: Path | None,
) -> dict[str, str]:
    """Return the settings of every measured session."""
    conf = contender.conf | extra_conf | {"spark.local.dir": str(work_dir / "local")}
    conf["spark.driver.memory"] = f"{heap_mib}m"
    if jar is not None:
        conf["spark.driver.extraClassPath"] = str(jar)
    return conf


def open_session(name: str, conf: dict[str, str]) -> SparkSession:
    """Return the session of a measured process."""
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().master("local[*]").appName(name)
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(spec_path: str, result_path: str) -> None:
    """Run the scenario of a spec in a session of its own, and write its batches."""
    spec = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-query-bench", spec["conf"])
    scenario = Scenario(**spec["scenario"])
    begin_ms = int(time.time() * 1000)
    batches = _run(spark, scenario, spec["checkpoint"])
    result = {
        "warmup": scenario.warmup,
        "batches": batches,
        "from_ms": begin_ms,
        "to_ms": int(time.time() * 1000),
    }
    Path(result_path).write_text(json.dumps(result))
    if spec["orderly"]:
        gateway: Any = spark.sparkContext._gateway
        jvm = gateway.proc  # the JVM writes its recording when its input ends
        spark.stop()
        jvm.stdin.close()
        jvm.wait(60)
    else:
        # At its end Spark's RocksDB store waits a minute for each store that a task of the stopped
        # query still holds. The measure is taken, so `run_measured` may kill the JVM.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
