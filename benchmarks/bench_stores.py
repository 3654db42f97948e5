#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures many small stores in one executor: `make bench-stores`, or `--help`.

A process for each contender opens them, runs batches and maintenance, closes them, and opens them
again, by Spark's own contract (scala/ManyStores.scala). Results: JSON below `benchmarks/results/`,
and a table on stdout.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_contenders import BASELINE, CONTENDERS, OURS
from benchmarks.bench_env import REPOSITORY, run_program
from benchmarks.bench_report import table
from benchmarks.bench_store import measure_many

_MIB = 1 << 20


def _grown(found: Mapping[str, Any], what: str) -> float:
    return float(found["after"][what] - found["before"][what]) / float(found["stores"])


def _memory_kib(found: Mapping[str, Any]) -> float:
    """Return what a store adds to the heap, to the rest of the JVM, and to the agent, in KiB."""
    before, after = found["before"]["memory"], found["after"]["memory"]
    return float(after["total"] - before["total"]) / float(found["stores"]) / 1024


FIGURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "open and commit the first batch, ms a store": lambda f: f["start_ms"] / f["stores"],
    "a batch, ms a store": lambda f: statistics.median(f["batch_ms"]) / f["stores"],
    "maintenance with news, ms a store": lambda f: f["maintenance_ms"] / f["stores"],
    "maintenance without, ms a store": lambda f: f["idle_maintenance_ms"] / f["stores"],
    "a batch after both, ms a store": lambda f: f["after_rest_ms"] / f["stores"],
    "open again, load and commit, ms a store": lambda f: f["restart_ms"] / f["stores"],
    "memory of an idle store, KiB": _memory_kib,
    "open files of an idle store": lambda f: _grown(f, "files"),
    "threads of an idle store": lambda f: _grown(f, "threads"),
}


def render(results: Mapping[str, Any]) -> str:
    """Return the table: a row for each figure, a column for each contender."""
    found = results["contenders"]
    rows = [[text, *(f"{of(found[n]):.3g}" for n in found)] for text, of in FIGURES.items()]
    return table(["", *(CONTENDERS[n].label for n in found)], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 if something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=2000, help="in the executor (2000)")
    parser.add_argument("--rows", type=int, default=50, help="of each, written by a batch (50)")
    parser.add_argument("--batches", type=int, default=5, help="after the first (5)")
    parser.add_argument("--contenders", default=f"{OURS},{BASELINE}", help="with commas")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="results")
    given = parser.parse_args(arguments)

    def measured(work: Path) -> dict[str, Any]:
        classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
        contenders = {}
        for name in given.contenders.split(","):
            print(name, file=sys.stderr, flush=True)
            contenders[name] = measure_many(
                CONTENDERS[name],
                {
                    "stores": given.stores,
                    "rows": given.rows,
                    "batches": given.batches,
                    "threads": os.cpu_count() or 1,
                },
                classes=classes,
                jar=bench_env.millpond_jar(None) if CONTENDERS[name].ours else None,
                work_dir=work / name,
                extra_conf=dict(pair.split("=", 1) for pair in given.conf),
            )
        return {"quick": False, "contenders": contenders}

    return run_program("stores", given.out, measured, render)


if __name__ == "__main__":
    sys.exit(main())
