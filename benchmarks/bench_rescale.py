# SPDX-License-Identifier: Apache-2.0
"""Rescale level: rescales the state of a stopped aggregation, and runs the first batch after it.

It compares `millpond rescale` with Spark's own `spark._streamingCheckpointManager.repartition`,
each on its own provider's state of the same query. `run.py` runs it in a process of its own for
each contender and repetition: `python -m benchmarks.bench_rescale <spec.json> <result.json>`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_contenders import BASELINE, OURS, Contender
from benchmarks.bench_env import bytes_below
from benchmarks.bench_process import millpond, run_spec
from benchmarks.bench_query import open_session, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENDERS = (OURS, BASELINE)
# Partitions before and after, and the max parallelism (None: the default). 12 is no multiple of 8,
# but it divides 1536: no row moves. 7 does not divide 1024: the rescale hashes every row anew.
CASES: tuple[tuple[int, int, int | None], ...] = (
    (8, 16, None),
    (16, 8, None),
    (8, 12, 1536),
    (8, 7, None),
)
_STATE = "spark.sql.streaming.stateStore."
_MAX_PARALLELISM = f"{_STATE}millpond.maxParallelism"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes: `keys` of the aggregation, `rows` of the first batch after a rescale.

    These rows reach all partitions.
    """

    keys: int
    rows: int


def sizes(scale: float, *, quick: bool) -> Sizes:
    """Return the sizes at a scale, or those of the smoke test."""
    return Sizes(keys=2_000, rows=500) if quick else Sizes(keys=int(2_000_000 * scale), rows=10_000)


def case_name(current: int, partitions: int) -> str:
    """Return the name of a case in the results."""
    return f"{current}_to_{partitions}"


def measure(
    contender: Contender,
    what: Sizes,
    *,
    jar: Path | None,
    work_dir: Path,
    heap_mib: int,
    extra_conf: dict[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    """Return the figures of each case of one process. Raises: BenchError: the process failed."""
    work_dir.mkdir(parents=True)
    conf = session_conf(contender, extra_conf, work_dir=work_dir, heap_mib=heap_mib, jar=jar)
    conf |= {f"{_STATE}maintenanceInterval": "500ms", f"{_STATE}minDeltasForSnapshot": "1"}
    measured = run_spec(
        [sys.executable, "-m", "benchmarks.bench_rescale"],
        {"conf": conf, "sizes": asdict(what), "work_dir": str(work_dir), "ours": contender.ours},
        work_dir=work_dir,
        timeout_s=timeout_s,
    )
    shutil.rmtree(work_dir)
    return measured


def _run(spark: SparkSession, checkpoint: Path, keys: int, rows: int) -> dict[str, Any]:
    """Run one micro-batch of `rows` rows, and return its progress."""
    from pyspark.sql import functions as f

    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
    )
    # The step from value to key is coprime to the number of keys. So even few rows reach all
    # partitions.
    counts = source.load().groupBy(((f.col("value") * 7_919) % keys).alias("key")).count()
    writer = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = [p for p in (json.loads(p.json) for p in query.recentProgress) if p["numInputRows"] > 0]
    assert len(found) == 1, "one micro-batch a run"
    last: dict[str, Any] = found[0]
    return last


def _build(spark: SparkSession, checkpoint: Path, partitions: int, what: Sizes) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    for _ in range(2):
        _run(spark, checkpoint, what.keys, what.keys)
        # Until maintenance has written a snapshot of this batch too.
        time.sleep(2.0 + what.keys / 200_000)


def _ours(checkpoint: Path, partitions: int) -> dict[str, Any]:
    """Rescale in a process of its own, as a user does."""
    given = ("rescale", str(checkpoint), "--partitions", str(partitions), "--json")
    seconds, said = millpond(*given)
    report = json.loads(said)
    return {
        "work_ms": report["seconds"] * 1000,
        "process_ms": seconds * 1000,
        "written_bytes": report["written_bytes"],
        "way": report["way"],
    }


def _sparks(spark: SparkSession, checkpoint: Path, partitions: int) -> dict[str, Any]:
    before, begin = bytes_below(checkpoint), time.monotonic()
    spark._streamingCheckpointManager.repartition(str(checkpoint), partitions)
    work_ms = (time.monotonic() - begin) * 1000
    return {
        "work_ms": work_ms,
        "written_bytes": bytes_below(checkpoint) - before,
        "way": "repartition",
    }


def _case(
    spark: SparkSession, base: Path, checkpoint: Path, partitions: int, what: Sizes, *, ours: bool
) -> dict[str, Any]:
    shutil.copytree(base, checkpoint)
    state_bytes = bytes_below(base / "state")
    if ours:
        # The copy has the heartbeat of the query that it was copied from.
        shutil.rmtree(checkpoint / "millpond" / "running", ignore_errors=True)
    done = _ours(checkpoint, partitions) if ours else _sparks(spark, checkpoint, partitions)
    begin = time.monotonic()
    progress = _run(spark, checkpoint, what.keys, what.rows)
    run_ms = (time.monotonic() - begin) * 1000
    (operator,) = progress["stateOperators"]
    first_ms = progress["durationMs"]["triggerExecution"]
    return done | {
        "state_bytes": state_bytes,
        "first_batch_ms": first_ms,
        "first_run_ms": run_ms,
        "sum_ms": done["work_ms"] + first_ms,
        "state_rows": operator["numRowsTotal"],
        "partitions": operator["numShufflePartitions"],
    }


def main(spec_path: str, result_path: str) -> None:
    """Run all cases of a spec in one session, and write their figures."""
    spec = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-rescale-bench", spec["conf"])
    what, work_dir = Sizes(**spec["sizes"]), Path(spec["work_dir"])
    bases: dict[tuple[int, int | None], Path] = {}
    for current, _, groups in CASES:
        key = (current, groups if spec["ours"] else None)
        if key in bases:
            continue
        bases[key] = work_dir / f"base-{current}-{key[1] or 'default'}"
        if key[1] is not None:
            spark.conf.set(_MAX_PARALLELISM, key[1])
        _build(spark, bases[key], current, what)
        spark.conf.unset(_MAX_PARALLELISM)  # only the first start of a query takes it
    # The first case does not count: it warms the session up, on both sides.
    _case(spark, bases[8, None], work_dir / "warm-up", 4, what, ours=spec["ours"])
    results = {}
    for current, partitions, groups in CASES:
        base, checkpoint = (
            bases[current, groups if spec["ours"] else None],
            work_dir / case_name(current, partitions),
        )
        results[case_name(current, partitions)] = _case(
            spark, base, checkpoint, partitions, what, ours=spec["ours"]
        )
    Path(result_path).write_text(json.dumps(results))
    # At its end Spark's RocksDB store waits a minute for each store that a task still holds.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
