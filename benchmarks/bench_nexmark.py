#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the queries of Nexmark that keep state: `make bench-nexmark`, or `--help`.

The events are generated once, with a seed, into Parquet files that all contenders read. Each
contender first shows that its results are right, then runs each query in a process of its own, one
after the other. Results: JSON below `benchmarks/results/`, a table on stdout, and with `--docs`
docs/benchmarks-nexmark.md with its charts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env, bench_nexmark_flink, bench_nexmark_report
from benchmarks.bench_contenders import (
    BASELINE,
    CONTENDERS,
    HEAP_PEER,
    OURS,
    Contender,
    in_turn,
)
from benchmarks.bench_env import REPOSITORY, BenchError, report_cells
from benchmarks.bench_nexmark_events import KINDS, Plan, generate
from benchmarks.bench_nexmark_flink import FLINKS
from benchmarks.bench_nexmark_queries import QUERIES
from benchmarks.bench_process import run_spec
from benchmarks.bench_query import session_conf

_CACHE = REPOSITORY / "build" / "bench"
_EVENTS, _PER_FILE = 10_000_000, 100_000
_CHECKED = Plan(seed=1, events=60_000, per_file=10_000)
_ALL = (OURS, BASELINE, HEAP_PEER)
_STATE = "spark.sql.streaming.stateStore."
_MIB = 1 << 20


def runs(contender: str, query: str) -> bool:
    """Return whether a contender can run a query."""
    return contender != HEAP_PEER or not QUERIES[query].scala


def _conf(contender: Contender, work: Path, plan: Plan, budget_mib: int | None) -> dict[str, str]:
    """Return the settings of a session.

    Args:
        budget_mib: memory for state, of all stores. None: as much as they want.
    """
    jar = bench_env.millpond_jar(None) if contender.ours else None
    heap_mib = contender.heap_mib(plan.events / 1e6)
    conf = session_conf(contender, {}, work_dir=work, heap_mib=heap_mib, jar=jar)
    if contender.ours:
        # By default a third of the heap, which the state of these queries may exceed.
        conf[_STATE + "millpond.memory.budget"] = f"{budget_mib or 8192}m"
    elif budget_mib is not None:
        conf[_STATE + "rocksdb.boundedMemoryUsage"] = "true"
        conf[_STATE + "rocksdb.maxMemoryUsageMB"] = str(budget_mib)
    classes = bench_env.compile_store_bench(_CACHE)
    path = [str(classes), conf.get("spark.driver.extraClassPath", "")]
    return conf | {
        "spark.driver.extraClassPath": os.pathsep.join(filter(None, path)),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }


def _process(
    contender: str, spec: dict[str, Any], work: Path, plan: Plan, budget_mib: int | None
) -> dict[str, Any]:
    conf = _conf(CONTENDERS[contender], work, plan, budget_mib)
    given = {"conf": conf, "checkpoint": str(work / "checkpoint"), **spec}
    command = [sys.executable, "-m", "benchmarks.bench_nexmark_query"]
    return run_spec(command, given, work_dir=work, timeout_s=300 + plan.events / 2_000)


def check(contender: str, queries: Sequence[str], work: Path) -> dict[str, Any]:
    """Return the number of rows of each query. Raises: BenchError: a result is wrong."""
    folder = generate(_CHECKED, _CACHE)
    closed = work / "closed"
    for kind in KINDS:
        (closed / kind).mkdir(parents=True)
        for path in [*(folder / kind).iterdir(), *(folder / "closing" / kind).iterdir()]:
            shutil.copy2(path, closed / kind / path.name)
    spec = {"check": True, "queries": list(queries), "folder": str(folder), "closed": str(closed)}
    if contender in FLINKS:
        rows = bench_nexmark_flink.results(FLINKS[contender], queries, folder, work / "flink")
        return _process(BASELINE, spec | {"rows": str(rows)}, work, _CHECKED, None)
    return _process(contender, spec, work, _CHECKED, None)


def measure(
    contender: str, query: str, plan: Plan, budget_mib: int | None, work: Path
) -> dict[str, Any]:
    """Return what one process took for one query. Raises: BenchError: it failed."""
    folder = generate(plan, _CACHE)
    if contender in FLINKS:
        flink = FLINKS[contender]
        return bench_nexmark_flink.measure(flink, query, folder, plan.events, work, budget_mib)
    spec = {"check": False, "queries": [query], "folder": str(folder)}
    return _process(contender, spec, work, plan, budget_mib)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="times ten million events (1)")
    parser.add_argument("--queries", default=",".join(QUERIES), help="some of them, with commas")
    parser.add_argument("--contenders", default=",".join(_ALL), help=f"also {','.join(FLINKS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the events (1)")
    parser.add_argument("--budget-mib", type=int, help="memory for state (default: what it takes)")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the batch")
    parser.add_argument("--check-only", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="a few thousand events: a smoke run")
    parser.add_argument("--out", type=Path, help="results; a file that is there gets more of them")
    parser.add_argument("--docs", action="store_true", help="write the page and its charts")
    parser.add_argument("--render", type=Path, help="write the page from results, measure nothing")
    parser.add_argument("--work-dir", help="for Spark checkpoints (default: TMPDIR)")
    return parser.parse_args(arguments)


def _plan(given: argparse.Namespace) -> Plan:
    if given.quick:
        return Plan(seed=given.seed, events=8_000, per_file=2_000)
    files = max(round(_EVENTS * given.scale / _PER_FILE), 4)
    return Plan(seed=given.seed, events=files * _PER_FILE, per_file=_PER_FILE)


def _chosen(names: str, known: Sequence[str]) -> list[str]:
    chosen = names.split(",")
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise ValueError(f"unknown names {unknown}; there are {', '.join(known)}")
    return chosen


def _begun(out: Path | None, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return results to add to. Raises: BenchError: those of a file are of another run."""
    if out is None or not out.exists():
        return fresh
    found: dict[str, Any] = json.loads(out.read_text())
    for name in ("commit", "plan"):
        if found[name] != fresh[name]:
            raise BenchError(f"{out} is of another {name}: name another file by --out")
    return found


def _run(given: argparse.Namespace, work: Path) -> tuple[dict[str, Any], Path]:
    """Measure the cells, and keep each as soon as it is there."""
    contenders = _chosen(given.contenders, [*_ALL, *FLINKS])
    queries = _chosen(given.queries, [*QUERIES])
    plan = _plan(given)
    host = bench_env.describe_host(work)
    fresh = host | {"quick": given.quick, "plan": asdict(plan), "checked": {}, "cells": {}}
    results = _begun(given.out, fresh)
    out = given.out or bench_env.results_path(results, prefix="nexmark-")

    def place(name: str) -> Path:
        shutil.rmtree(work / "run", ignore_errors=True)
        print(name, file=sys.stderr, flush=True)
        return work / "run"

    for contender in contenders if not given.no_check else []:
        able = [query for query in queries if runs(contender, query)]
        found = check(contender, able, place(f"{contender}: check"))
        results["checked"].setdefault(contender, {}).update(found)
        bench_env.write_results(results, out)
    for i, query in enumerate(queries if not given.check_only else []):
        setting = "memory" if given.budget_mib is None else "budget"
        cell = results["cells"].setdefault(
            f"{setting}/{query}",
            {"setting": setting, "query": query, "budget_mib": given.budget_mib, "contenders": {}},
        )
        for contender in in_turn(contenders, i):
            if runs(contender, query):
                where = place(f"{contender}: {query}")
                raw = measure(contender, query, plan, given.budget_mib, where)
                cell["contenders"][contender] = raw
                bench_env.write_results(results, out)
    return results, out


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 if something could not be measured."""
    return report_cells(
        "bench-nexmark",
        _arguments(arguments),
        _run,
        bench_nexmark_report.told,
        bench_nexmark_report.write,
    )


if __name__ == "__main__":
    sys.exit(main())
