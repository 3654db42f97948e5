# SPDX-License-Identifier: Apache-2.0
"""Flink beside the contenders of `bench_nexmark`: its settings, and its processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import bench_flink
from benchmarks.bench_env import REPOSITORY, BenchError
from benchmarks.bench_nexmark_events import KINDS
from benchmarks.bench_nexmark_flink_sql import QUERIES, ddl, held
from benchmarks.bench_nexmark_queries import QUERIES as SPARKS
from benchmarks.bench_process import kill_when, run_spec

_CACHE = REPOSITORY / "build" / "bench"
_CORES = 2
_CHECKPOINT_MS = 1000
_RUNS = 2  # of a query, in one process, one after the other; the last is measured
_MANAGED_MIB = 512  # for RocksDB: what Flink takes by default of a process of 1.7 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Flink:
    """Flink with one state backend."""

    name: str
    label: str
    backend: str

    def heap_mib(self, scale: float) -> int:
        """Return the heap of its processes at `scale` million events, as Spark's stores have it."""
        return int(2048 + (1024 * scale if self.backend == "hashmap" else 0))


FLINKS = {
    flink.name: flink
    for flink in (
        Flink(name="flink-rocksdb", label="Flink, RocksDB", backend="rocksdb"),
        Flink(name="flink-heap", label="Flink, heap", backend="hashmap"),
    )
}


def conf(flink: Flink, work: Path, budget_mib: int | None) -> dict[str, str]:
    """Return Flink's settings: those of nexmark/nexmark, on the cores and disk of all others.

    Args:
        budget_mib: memory for RocksDB. None: what Flink's own settings have.
    """
    return {
        "parallelism.default": str(_CORES),
        "state.backend.type": flink.backend,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": f"{_CHECKPOINT_MS} ms",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        "io.tmp.dirs": str(work / "tmp"),
        "web.checkpoints.history": "10000",
        "taskmanager.memory.managed.size": f"{budget_mib or _MANAGED_MIB}m",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
        "rest.bind-port": "0",
    }


def halves(folder: Path, cache: Path) -> Path:
    """Return a folder with two files of each kind, one for each reader, made unless it is there.

    Flink's source hands out whole files in any order. So that the event time goes up in each
    reader, one file has the batches with even numbers, the other the odd ones.
    """
    target = cache / f"{folder.name}-halves"
    if target.is_dir():
        return target
    fresh = cache / f".{target.name}-{os.getpid()}"
    try:
        for kind in KINDS:
            (fresh / kind).mkdir(parents=True)
            files = sorted((folder / kind).glob("*.parquet"))
            for half in range(_CORES):
                schema = pq.read_schema(files[0])
                with pq.ParquetWriter(fresh / kind / f"{half}.parquet", schema) as writer:
                    for file in files[half::_CORES]:
                        writer.write_table(pq.read_table(file))
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _statements(query: str, folder: Path) -> dict[str, Any]:
    flinks = QUERIES[query]
    made = ddl(folder, SPARKS[query].kinds, marked=flinks.marked)
    return {"ddl": made, "sql": flinks.sql}


def _process(
    flink: Flink, given: dict[str, Any], work: Path, scale: float, budget_mib: int | None = None
) -> dict[str, Any]:
    (work / "tmp").mkdir(parents=True, exist_ok=True)
    spec = {"conf": conf(flink, work, budget_mib), **given}
    return run_spec(_command(flink, scale), spec, work_dir=work, timeout_s=_timeout_s(scale))


def _command(flink: Flink, scale: float) -> list[str]:
    path = [*bench_flink.jars(), *bench_flink.parquet_jars()]
    sources = [bench_flink.SOURCES / f"{name}.scala" for name in ("FlinkNexmark", "HeldEvents")]
    heap = [f"-Xmx{flink.heap_mib(scale)}m"]
    return bench_flink.command("FlinkNexmark", _CACHE, sources, path, heap)


def _timeout_s(scale: float) -> float:
    return 300 + scale * 500


def results(flink: Flink, queries: Sequence[str], folder: Path, work: Path) -> Path:
    """Return a folder with the rows that each query has in the end, as lines of JSON."""
    out = work / "rows"
    out.mkdir(parents=True)
    given = {name: _statements(name, halves(folder, _CACHE)) for name in queries}
    _process(flink, {"queries": given, "out": str(out)}, work, 1)
    return out


def measure(
    flink: Flink,
    query: str,
    folder: Path,
    events: int,
    work: Path,
    budget_mib: int | None,
    *,
    from_memory: bool,
) -> dict[str, Any]:
    """Return what runs of a query over all events took.

    Args:
        from_memory: the process holds the events before the first run.

    Raises: BenchError: it failed.
    """
    files = halves(folder, _CACHE)
    given = {"runs": _RUNS, **_statements(query, files)}
    if from_memory:
        given["held"] = held(files, SPARKS[query].kinds, marked=QUERIES[query].marked)
    raw = _process(flink, given, work, events / 1e6, budget_mib)
    if not all(raw["runs"][-1]["source_bytes"]):
        raise BenchError(f"{query}: one of Flink's readers read both files: {raw}")
    return raw | {"events": events, "flink": bench_flink.VERSION}


def recover(flink: Flink, query: str, folder: Path, events: int, work: Path) -> dict[str, Any]:
    """Return how long it took until a query that was killed was back.

    A first process runs it to the end. A second one is killed by signal 9 after two thirds of the
    time that the first one took. A third one starts from the last checkpoint. `first_commit_s` and
    `caught_up_s` are seconds from its start: until its first checkpoint is complete, and until all
    events are worked off.

    Raises: BenchError: a process failed, or there was no checkpoint yet.
    """
    scale, given = events / 1e6, {"runs": 1, **_statements(query, halves(folder, _CACHE))}
    (whole,) = _process(flink, given, work / "whole", scale)["runs"]
    cut = work / "cut"
    (cut / "tmp").mkdir(parents=True)
    running = cut / "running"
    spec = {"conf": conf(flink, cut, None), **given, "running": str(running)}

    def due() -> bool:
        return running.exists() and time.time() >= running.stat().st_mtime + whole["ms"] * 2 / 3000

    command = _command(flink, scale)
    kill_when(due, command, spec, work_dir=cut, timeout_s=_timeout_s(scale))
    restored = last_checkpoint(cut / "checkpoints")
    began = time.time()
    raw = _process(flink, {**given, "restore": restored.as_uri()}, work / "rest", scale)
    (rest,) = raw["runs"]
    left = sum(rest["source_records"]) / sum(whole["source_records"])
    return raw | {
        "backlog_events": round(events * left),
        "first_commit_s": min(rest["checkpoint_ended_at_ms"]) / 1000 - began,
        "caught_up_s": rest["ended_at_ms"] / 1000 - began,
        "whole_ms": whole["ms"],
        "flink": bench_flink.VERSION,
    }


def last_checkpoint(checkpoints: Path) -> Path:
    """Return the folder of the last complete checkpoint. Raises: BenchError: there is none."""
    complete = [path.parent for path in checkpoints.glob("*/chk-*/_metadata")]
    if not complete:
        raise BenchError(f"{checkpoints}: Flink was killed before its first checkpoint")
    return max(complete, key=lambda folder: int(folder.name.removeprefix("chk-")))
