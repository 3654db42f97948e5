# SPDX-License-Identifier: Apache-2.0
"""Runs one streaming query on slow storage, and notes every request, by micro-batch.

`bench_s3.py` runs it in a process of its own: `python -m benchmarks.bench_s3_query <spec.json>
<result.json>`. The Spark checkpoint is on `slow:` (benchmarks/scala/SlowFileSystem.scala), a local
directory with a latency for each call. Millpond's state is on `s3_pond`, with the same latency.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from benchmarks import bench_query
from benchmarks.bench_query import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Time in ms, where to, operation, key or path.
Request = tuple[int, str, str, str]
_DEADLINE_S = 900.0


def kind_of(key: str) -> str:
    """Return the kind of the file that a request is about.

    It is `changelog`, `manifest`, `sst`, `state` (other files of state), or `logs` (Spark's own).
    """
    if "/state/" not in f"/{key}":
        return "millpond" if "/millpond/" in f"/{key}" else "logs"
    suffix = key.rpartition(".")[2]
    if suffix in ("changelog", "manifest", "sst"):
        return suffix
    return "metadata" if "/_metadata" in key or "/_stateSchema" in key else "state"


def tally(requests: Sequence[Request]) -> dict[str, int]:
    """Return the number of requests by `<where> <operation> <kind>`."""
    return dict(
        sorted(
            Counter(
                f"{where} {operation} {kind_of(key)}" for _, where, operation, key in requests
            ).items()
        )
    )


def by_batch(
    batches: Sequence[dict[str, Any]], requests: Sequence[Request], end_ms: int
) -> list[dict[str, int]]:
    """Return the tally of each batch: the requests from its start to the start of the next.

    The last batch ends at `end_ms`.
    """
    starts = [batch["start_ms"] for batch in batches] + [end_ms]
    return [tally([r for r in requests if begin <= r[0] < end]) for begin, end in pairwise(starts)]


def pond_log(endpoint: str) -> list[tuple[int, str, str, int]]:
    """Return the requests to `s3_pond` since the last call: time in ms, operation, key, bytes."""
    with urlopen(f"{endpoint}/-/log") as answer:
        return [tuple(request) for request in json.load(answer)]


class _Source:
    """Where the requests come from."""

    def __init__(self, spark: SparkSession, pond: str | None) -> None:
        self._spark, self._pond = spark, pond

    def take(self) -> list[Request]:
        """Return the requests since the last call, in their order."""
        jvm: Any = self._spark.sparkContext._jvm
        found: list[Request] = []
        for line in jvm.org.apache.spark.sql.millpond.bench.SlowFileSystem.take().splitlines():
            moment, operation, path = line.split(" ", 2)
            found.append((int(moment), "hadoop", operation, path))
        if self._pond is not None:
            found += [
                (moment, "s3", operation, key) for moment, operation, key, _ in pond_log(self._pond)
            ]
        return sorted(found)


def _start_ms(progress: dict[str, Any]) -> int:
    return round(
        datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp() * 1000
    )


def _batches(
    spark: SparkSession, scenario: Scenario, checkpoint: str, count: int
) -> list[dict[str, Any]]:
    """Run the query for `count` micro-batches, and return them."""
    frame, mode = bench_query.aggregation(spark, scenario)
    query = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        found = bench_query.progress_of(
            query, count, scenario.name, seconds=_DEADLINE_S, pause_s=0.1
        )
        return [bench_query.batch(p) | {"start_ms": _start_ms(p)} for p in found]
    finally:
        query.stop()


def _measure(spark: SparkSession, spec: dict[str, Any]) -> dict[str, Any]:
    scenario = Scenario(**spec["scenario"])
    spark.conf.set("spark.sql.shuffle.partitions", scenario.partitions)
    source = _Source(spark, spec["pond"])
    source.take()
    begin_ms = time.time_ns() // 1_000_000
    batches = _batches(spark, scenario, spec["checkpoint"], scenario.warmup + scenario.measured)
    requests = source.take()
    end_ms = batches[-1]["start_ms"] + batches[-1]["trigger_ms"]
    result: dict[str, Any] = {
        "warmup": scenario.warmup,
        "batches": batches,
        "requests": by_batch(batches, requests, end_ms),
        "all_requests": tally([r for r in requests if r[0] < end_ms]),
        "from_ms": begin_ms,
    }
    if spec["restart"]:
        again = _batches(spark, scenario, spec["checkpoint"], 1)
        start_ms = again[0]["start_ms"]
        # Count from the start of the query: it reads its logs before its first batch.
        found = [r for r in source.take() if r[0] < start_ms + again[0]["trigger_ms"]]
        result["restart"] = {"batch": again[0], "requests": tally(found)}
    return result


def main(spec_path: str, result_path: str) -> None:
    """Run the scenario of a spec in a session of its own, and write its requests."""
    from pyspark.sql import SparkSession

    spec = json.loads(Path(spec_path).read_text())
    builder = SparkSession.Builder().master(f"local[{spec['slots']}]").appName("millpond-s3-bench")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    for key, value in spec["conf"].items():
        builder = builder.config(key, value)
    result = _measure(builder.getOrCreate(), spec)
    Path(result_path).write_text(json.dumps(result))
    # At its end Spark's RocksDB store waits a minute for each store that a task still holds: see
    # bench_query.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
