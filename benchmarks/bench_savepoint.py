# SPDX-License-Identifier: Apache-2.0
"""Savepoint level: what saving, forking, exporting and restoring a query costs, against Spark's plain restart.

Run by `run.py` as processes of their own: `python -m benchmarks.bench_savepoint <spec.json> <result.json>`. The query counts
rows by key over Parquet files, one file a batch: one with all keys, then small ones, until snapshots have been taken.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_contenders import BASELINE, CONTENDERS, OURS, Contender
from benchmarks.bench_env import run_measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
_SMALL_BATCHES, _SMALL_ROWS = 12, 1000
_SETTLE_S = 6.0  # maintenance, every two seconds, takes the snapshot that is due
_BUSY_ROWS = 300_000
_CONF = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

# name, title, unit, goal of the issue
_ROWS = (
    ("create_ms", "native savepoint of a running query", "ms", "1 000"),
    ("create_written_kib", "... bytes written", "KiB", ""),
    ("fork_ms", "fork on the same file system", "ms", "300"),
    ("fork_written_kib", "... bytes written", "KiB", ""),
    ("stop_ms", "stop with savepoint, beyond the running batch", "ms", "500"),
    ("canonical_rows_per_s", "canonical export", "rows/s", "1 000 000"),
    ("restore_ms", "restore from native", "ms", ""),
    ("first_batch_ms", "restore and start, to the first batch committed", "ms", ""),
    ("spark_first_batch_ms", "Spark's RocksDB store, start, to the first batch committed", "ms", ""),
    ("against_spark", "the one against the other", "x", "1.2"),
)


def keys_of(scale: float, *, quick: bool) -> int:
    """Return the number of keys of the state."""
    return 20_000 if quick else int(2_000_000 * scale)


def measure(keys: int, *, jar: Path | None, work_dir: Path, heap_mib: int, timeout_s: float) -> dict[str, Any]:
    """Return the figures of one repetition. Raises: BenchError: a process failed."""
    work_dir.mkdir(parents=True)
    try:
        figures: dict[str, Any] = {"keys": keys}
        for name in (OURS, BASELINE):
            contender = CONTENDERS[name]
            for phase in ("build", "restart"):
                spec: dict[str, Any] = {
                    "phase": phase,
                    "ours": contender.ours,
                    "keys": keys,
                    "work_dir": str(work_dir / name),
                }
                spec["conf"] = _conf(contender, jar, work_dir, heap_mib)
                figures |= _process(spec, work_dir / f"{name}-{phase}", timeout_s)
        figures["against_spark"] = figures["first_batch_ms"] / figures["spark_first_batch_ms"]
        return figures
    finally:
        shutil.rmtree(work_dir)


def _conf(contender: Contender, jar: Path | None, work_dir: Path, heap_mib: int) -> dict[str, str]:
    conf = _CONF | contender.conf | {"spark.local.dir": str(work_dir / "local")}
    conf["spark.driver.memory"] = f"{heap_mib}m"
    if contender.ours:
        conf["spark.driver.extraClassPath"] = str(jar)
    return conf


def _process(spec: Mapping[str, Any], base: Path, timeout_s: float) -> dict[str, Any]:
    given, result = base.with_suffix(".spec.json"), base.with_suffix(".json")
    given.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "benchmarks.bench_savepoint", str(given), str(result)]
    run_measured(command, log=base.with_suffix(".log"), timeout_s=timeout_s)
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def text(repetitions: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of medians, and the figure of each repetition."""
    if not repetitions:
        return "savepoints: nothing was measured"
    lines = [f"savepoints, {repetitions[0]['keys']:,} keys in {PARTITIONS} partitions (median; goal; each repetition)"]
    for name, title, unit, goal in _ROWS:
        values = [float(r[name]) for r in repetitions]
        each = ", ".join(f"{value:,.2f}" if unit == "x" else f"{value:,.0f}" for value in values)
        median = statistics.median(values)
        shown = f"{median:,.2f}" if unit == "x" else f"{median:,.0f}"
        lines.append(f"{title:<62} {shown:>12} {unit:<7} {goal:>10}   {each}")
    return "\n".join(lines)


# ---- in a process of its own ---------------------------------------------------------------------------------------


class _Query:
    """The measured query: its input, and how to start it."""

    def __init__(self, spark: SparkSession, directory: Path, seed: int = 0) -> None:
        self.spark, self.directory, self.count = spark, directory, seed
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, rows: int, keys: int) -> None:
        """One more file, which is one more batch, over keys below `keys`; all of them if `rows` is as many."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = np.arange(rows) if rows == keys else np.random.default_rng(self.count).integers(0, keys, rows)
        hidden = self.directory / f"_{self.count:05d}.parquet"
        pq.write_table(pa.table({"key": values.astype("int64")}), hidden)
        os.utime(hidden, (1_700_000_000 + self.count,) * 2)
        hidden.rename(self.directory / f"{self.count:05d}.parquet")
        self.count += 1

    def start(self, checkpoint: Path) -> StreamingQuery:
        source = self.spark.readStream.schema("key long").option("maxFilesPerTrigger", 1).parquet(str(self.directory))
        counts = source.groupBy("key").count().writeStream.format("noop").outputMode("update")
        return counts.option("checkpointLocation", str(checkpoint)).start()


def _await(query: StreamingQuery, checkpoint: Path, batch: int, log: str = "commits") -> None:
    path = checkpoint / log / str(batch)
    while not path.exists():
        failure = query.exception()
        if failure is not None:
            raise failure
        time.sleep(0.002)


def _ms(begin: float) -> float:
    return (time.monotonic() - begin) * 1000.0


def _build(spark: SparkSession, directory: Path, keys: int, *, ours: bool) -> dict[str, float]:
    query = _Query(spark, directory / "input")
    checkpoint = directory / "checkpoint"
    query.add(keys, keys)
    for _ in range(_SMALL_BATCHES):
        query.add(_SMALL_ROWS, keys)
    running = query.start(checkpoint)
    _await(running, checkpoint, _SMALL_BATCHES)
    time.sleep(_SETTLE_S)
    figures = _save(query, running, directory, keys) if ours else {}
    running.stop()
    return figures


def _save(query: _Query, running: StreamingQuery, directory: Path, keys: int) -> dict[str, float]:
    import millpond
    from millpond import savepoint

    checkpoint = directory / "checkpoint"
    begin = time.monotonic()
    created = savepoint.create(checkpoint, directory / "native")
    figures: dict[str, float] = {"create_ms": _ms(begin), "create_written_kib": created.bytes_written / 1024}
    begin = time.monotonic()
    forked = savepoint.fork(checkpoint, directory / "fork")
    figures |= {"fork_ms": _ms(begin), "fork_written_kib": forked.bytes_written / 1024}
    begin = time.monotonic()
    savepoint.create(checkpoint, directory / "canonical", format="canonical")
    figures["canonical_rows_per_s"] = keys / (time.monotonic() - begin)
    batch = query.count
    query.add(min(_BUSY_ROWS, keys - 1), keys)
    _await(running, checkpoint, batch, "offsets")
    saved = millpond.stop_with_savepoint(running, directory / "stopped")
    assert saved.batch == batch, f"saved batch {saved.batch} instead of {batch}: the running one was not awaited"
    figures["stop_ms"] = (time.time() - (checkpoint / "commits" / str(batch)).stat().st_mtime) * 1000.0
    # The savepoints before it do not know this file, and Spark's store gets no such batch.
    (query.directory / f"{batch:05d}.parquet").unlink()
    return figures


def _restart(spark: SparkSession, directory: Path, keys: int, *, ours: bool) -> dict[str, float]:
    warm = _Query(spark, directory / "warm-input")
    warm.add(_SMALL_ROWS, _SMALL_ROWS)
    running = warm.start(directory / "warm")
    _await(running, directory / "warm", 0)
    running.stop()
    query = _Query(spark, directory / "input", seed=10_000)
    query.add(_SMALL_ROWS, keys)
    figures: dict[str, float] = {}
    checkpoint = directory / "checkpoint"
    begin = time.monotonic()
    if ours:
        from millpond import savepoint

        checkpoint = directory / "restored"
        savepoint.restore(directory / "native", checkpoint)
        figures["restore_ms"] = _ms(begin)
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    running = query.start(checkpoint)
    _await(running, checkpoint, last + 1)
    figures["first_batch_ms" if ours else "spark_first_batch_ms"] = _ms(begin)
    running.stop()
    return figures


def main(spec_path: str, result_path: str) -> None:
    """Run a phase of a spec in a session of its own and write its figures."""
    from pyspark.sql import SparkSession

    spec = json.loads(Path(spec_path).read_text())
    builder = SparkSession.Builder().master("local[*]").appName("millpond-savepoint-bench")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    for key, value in spec["conf"].items():
        builder = builder.config(key, value)
    phase = {"build": _build, "restart": _restart}[spec["phase"]]
    figures = phase(builder.getOrCreate(), Path(spec["work_dir"]), spec["keys"], ours=spec["ours"])
    Path(result_path).write_text(json.dumps(figures))
    os._exit(0)  # as in bench_query: the measure is taken


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
