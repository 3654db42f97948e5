# SPDX-License-Identifier: Apache-2.0
"""Savepoint level: what it costs to save, fork, export and restore a query.

Spark's plain restart is the comparison. The query counts rows by key over Parquet files, one file
a micro-batch: one with all keys, then small ones, until there are snapshots. `run.py` runs two
processes for each contender and repetition, `python -m benchmarks.bench_savepoint <spec.json>
<result.json>`. The first runs the query, and saves it while it runs. The second restores it (with
Spark's store: starts it again), and runs one micro-batch. A third process, without Spark, measures
the codec of exports and edits: `bench_codec`.
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
from benchmarks.bench_process import run_measured, run_spec
from benchmarks.bench_query import open_session, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CONTENDERS = (OURS, BASELINE)
PARTITIONS = 2
_SMALL_BATCHES = 12
_STATE = "spark.sql.streaming.stateStore."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one repetition.

    keys: the keys of the state.
    rows: the rows of a small micro-batch.
    busy_rows: the rows of the micro-batch that the stop with a savepoint meets.
    codec_rows: the rows to decode and encode.
    settle_s: how long the query idles before it is saved. Maintenance takes the due snapshots then.
    """

    keys: int
    rows: int
    busy_rows: int
    codec_rows: int
    settle_s: float


def sizes(scale: float, *, quick: bool) -> Sizes:
    """Return the sizes at a scale, or those of the smoke test."""
    if quick:
        return Sizes(keys=2_000, rows=100, busy_rows=1_000, codec_rows=2_000, settle_s=0.5)
    keys = int(2_000_000 * scale)
    return Sizes(
        keys=keys, rows=1_000, busy_rows=int(300_000 * scale), codec_rows=keys, settle_s=6.0
    )


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
    """Return the figures of one repetition. Raises: BenchError: a process failed."""
    work_dir.mkdir(parents=True)
    conf = session_conf(contender, extra_conf, work_dir=work_dir, heap_mib=heap_mib, jar=jar)
    conf |= {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        f"{_STATE}maintenanceInterval": "500ms",
    }
    spec = {
        "conf": conf,
        "sizes": asdict(what),
        "work_dir": str(work_dir / "job"),
        "ours": contender.ours,
    }
    figures: dict[str, Any] = {"keys": what.keys}
    for phase in ("build", "restart"):
        figures |= run_spec(
            [sys.executable, "-m", "benchmarks.bench_savepoint"],
            spec | {"phase": phase},
            work_dir=work_dir / phase,
            timeout_s=timeout_s,
        )
    if contender.ours:
        result = work_dir / "codec.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.bench_codec",
            str(what.codec_rows),
            str(result),
        ]
        run_measured(command, log=work_dir / "codec.log", timeout_s=timeout_s)
        figures["codec"] = json.loads(result.read_text())
    shutil.rmtree(work_dir)
    return figures


# ---- in a process of its own ---------------------------------------------------------------------


class _Query:
    """The measured query: its input, and how to start it."""

    def __init__(self, spark: SparkSession, directory: Path, first: int = 0) -> None:
        self.spark, self.directory, self.count = spark, directory, first
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, rows: int, keys: int) -> int:
        """Add a file, which is one micro-batch, and return its number.

        Its rows have keys below `keys`: all of them, if `rows` equals `keys`.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = self.count
        values = (
            np.arange(rows)
            if rows == keys
            else np.random.default_rng(number).integers(0, keys, rows)
        )
        hidden = self.directory / f"_{number:05d}.parquet"
        pq.write_table(pa.table({"key": values.astype("int64")}), hidden)
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(self.directory / f"{number:05d}.parquet")
        self.count += 1
        return number

    def start(self, checkpoint: Path) -> StreamingQuery:
        source = (
            self.spark.readStream.schema("key long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.directory))
        )
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


def _build(spark: SparkSession, directory: Path, what: Sizes, *, ours: bool) -> dict[str, float]:
    query = _Query(spark, directory / "input")
    checkpoint = directory / "checkpoint"
    query.add(what.keys, what.keys)
    for _ in range(_SMALL_BATCHES):
        query.add(what.rows, what.keys)
    running = query.start(checkpoint)
    _await(running, checkpoint, _SMALL_BATCHES)
    time.sleep(what.settle_s)
    if ours:
        return _save(query, running, directory, what)
    running.stop()
    return {}


def _save(query: _Query, running: StreamingQuery, directory: Path, what: Sizes) -> dict[str, float]:
    import millpond
    from millpond import savepoint

    checkpoint = directory / "checkpoint"
    begin = time.monotonic()
    created = savepoint.create(checkpoint, directory / "native")
    figures: dict[str, float] = {
        "create_ms": _ms(begin),
        "create_written_bytes": created.bytes_written,
        "create_linked_bytes": created.bytes_linked,
    }
    begin = time.monotonic()
    forked = savepoint.fork(checkpoint, directory / "fork")
    figures |= {
        "fork_ms": _ms(begin),
        "fork_written_bytes": forked.bytes_written,
        "state_bytes": forked.bytes_linked,
    }
    begin = time.monotonic()
    savepoint.create(checkpoint, directory / "canonical", format="canonical")
    figures["export_rows_per_s"] = what.keys / (time.monotonic() - begin)
    shutil.rmtree(directory / "canonical")
    batch = query.add(what.busy_rows, what.keys)
    _await(running, checkpoint, batch, "offsets")
    saved = millpond.stop_with_savepoint(running, directory / "stopped")
    assert saved.batch == batch, (
        f"saved batch {saved.batch} instead of {batch}: the running one was not awaited"
    )
    figures["stop_ms"] = (
        time.time() - (checkpoint / "commits" / str(batch)).stat().st_mtime
    ) * 1000.0
    # Spark's store, the comparison, has no such micro-batch.
    (query.directory / f"{batch:05d}.parquet").unlink()
    return figures


def _restart(spark: SparkSession, directory: Path, what: Sizes, *, ours: bool) -> dict[str, float]:
    warm = _Query(spark, directory / "warm-input")
    warm.add(what.rows, what.rows)
    running = warm.start(directory / "warm")
    _await(running, directory / "warm", 0)
    running.stop()
    query = _Query(spark, directory / "input", first=10_000)
    query.add(what.rows, what.keys)
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
    figures["first_batch_ms"] = _ms(begin)
    running.processAllAvailable()
    (operator,) = json.loads(running.recentProgress[0].json)["stateOperators"]
    figures["state_rows"] = operator["numRowsTotal"]
    return figures


def main(spec_path: str, result_path: str) -> None:
    """Run a phase of a spec in a session of its own, and write its figures."""
    spec = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-savepoint-bench", spec["conf"])
    phase = {"build": _build, "restart": _restart}[spec["phase"]]
    figures = phase(spark, Path(spec["work_dir"]), Sizes(**spec["sizes"]), ours=spec["ours"])
    Path(result_path).write_text(json.dumps(figures))
    os._exit(0)  # as in bench_query: the measure is taken


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
