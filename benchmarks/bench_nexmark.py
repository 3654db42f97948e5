#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the queries of Nexmark that keep state: `make bench-nexmark`, or `--help`.

The events are generated once, with a seed, into Parquet files that all contenders read. Each
contender first shows that its results are right, then runs each query in a process of its own, one
after the other. Results: JSON below `benchmarks/results/`, a table on stdout, and with `--docs`
their parts of docs/benchmarks-nexmark.md with the charts.

Settings: with state in memory; killed by signal 9 after two thirds of the events, and started
again; with memory for a part of the state.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env, bench_nexmark_flink, bench_nexmark_recovery, bench_nexmark_report
from benchmarks.bench_contenders import (
    BASELINE,
    CONTENDERS,
    HEAP_PEER,
    OURS,
    Contender,
    in_turn,
)
from benchmarks.bench_env import REPOSITORY, BenchError, report_cells
from benchmarks.bench_nexmark_events import EVENTS, KINDS, Plan, generate
from benchmarks.bench_nexmark_flink import FLINKS
from benchmarks.bench_nexmark_queries import QUERIES
from benchmarks.bench_process import run_spec
from benchmarks.bench_query import session_conf
from integration.jvm import compile_harness

_CACHE = REPOSITORY / "build" / "bench"
_PER_FILE = 100_000
_CHECKED = Plan(seed=1, events=60_000, per_file=10_000)
_ALL = (OURS, BASELINE, HEAP_PEER)
_STATE = "spark.sql.streaming.stateStore."
_COMMAND = (sys.executable, "-m", "benchmarks.bench_nexmark_query")


def runs(contender: str, query: str, setting: str = "memory") -> bool:
    """Return whether a contender can run a query in a setting."""
    if setting == "budget" and contender in (HEAP_PEER, "flink-heap"):
        return False
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
        conf |= contender.bounded(budget_mib or 8192)
    elif budget_mib is not None:
        conf |= contender.bounded(budget_mib)
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
    given = {"conf": _conf(CONTENDERS[contender], work, plan, budget_mib), **_places(work), **spec}
    return run_spec(_COMMAND, given, work_dir=work, timeout_s=_timeout_s(plan))


def _places(work: Path) -> dict[str, str]:
    return {"checkpoint": str(work / "checkpoint")}


def _timeout_s(plan: Plan) -> float:
    return 300 + plan.events / 2_000


def _recovered(
    contender: str, spec: dict[str, Any], work: Path, plan: Plan, checkpoint: Path, files: int
) -> dict[str, Any]:
    conf = _conf(CONTENDERS[contender], work, plan, None)
    conf["spark.driver.extraClassPath"] += f"{os.pathsep}{compile_harness()}"
    given = {"conf": conf, **_places(work), **spec}
    return bench_nexmark_recovery.recover(
        _COMMAND, given, checkpoint, files, work_dir=work, timeout_s=_timeout_s(plan)
    )


def check(contender: str, queries: Sequence[str], work: Path) -> dict[str, Any]:
    """Return the number of rows of each query. Raises: BenchError: a result is wrong."""
    spec = _check_spec(queries, work)
    if contender in FLINKS:
        folder = Path(spec["folder"])
        rows = bench_nexmark_flink.results(FLINKS[contender], queries, folder, work / "flink")
        return _process(BASELINE, spec | {"rows": str(rows)}, work, _CHECKED, None)
    return _process(contender, spec, work, _CHECKED, None)


def check_recovery(contender: str, query: str, work: Path) -> int:
    """Return the number of rows of a query that was killed. Raises: BenchError: one is wrong."""
    spec, checkpoint = _check_spec([query], work), work / "checkpoint" / query
    files = _CHECKED.files + (QUERIES[query].mode == "append")  # with those that close windows
    return int(_recovered(contender, spec, work, _CHECKED, checkpoint, files)[query])


def _check_spec(queries: Sequence[str], work: Path) -> dict[str, Any]:
    folder = generate(_CHECKED, _CACHE)
    closed = work / "closed"
    for kind in KINDS:
        (closed / kind).mkdir(parents=True)
        for path in [*(folder / kind).iterdir(), *(folder / "closing" / kind).iterdir()]:
            shutil.copy2(path, closed / kind / path.name)
    return {"check": True, "queries": list(queries), "folder": str(folder), "closed": str(closed)}


def measure(
    contender: str,
    query: str,
    plan: Plan,
    work: Path,
    setting: str = "memory",
    budget_mib: int | None = None,
) -> dict[str, Any]:
    """Return what one process took for one query. Raises: BenchError: it failed."""
    folder, held = generate(plan, _CACHE), setting == "source"
    if contender in FLINKS:
        flink = FLINKS[contender]
        if setting == "recovery":
            return bench_nexmark_flink.recover(flink, query, folder, plan.events, work)
        return bench_nexmark_flink.measure(
            flink, query, folder, plan.events, work, budget_mib, from_memory=held
        )
    spec = {"check": False, "queries": [query], "folder": str(folder), "held": held}
    if setting == "recovery":
        return _recovered(contender, spec, work, plan, work / "checkpoint", plan.files)
    return _process(contender, spec, work, plan, budget_mib)


def budget_mib(in_memory: Mapping[str, Any]) -> int:
    """Return an eighth of the memory that the state of a query takes in Millpond."""
    most: int = max(batch["state_memory_bytes"] for batch in in_memory["batches"])
    return max(round(most / 8 / 2**20), 1)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="times ten million events (1)")
    parser.add_argument("--queries", default=",".join(QUERIES), help="some of them, with commas")
    parser.add_argument("--contenders", default=",".join(_ALL), help=f"also {','.join(FLINKS)}")
    known = ",".join(bench_nexmark_report.SETTINGS)
    parser.add_argument("--settings", default="memory", help=f"some of {known} (memory)")
    parser.add_argument("--seed", type=int, default=1, help="of the events (1)")
    parser.add_argument("--budget-mib", type=int, help="for state, in the setting budget")
    parser.add_argument("--no-check", action="store_true", help="do not compare with the batch")
    parser.add_argument("--check-only", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="a few thousand events: a smoke run")
    parser.add_argument("--out", type=Path, help="results; a file that is there gets more of them")
    parser.add_argument("--docs", action="store_true", help="write their parts of the page")
    parser.add_argument("--render", type=Path, help="write them from results, measure nothing")
    parser.add_argument("--work-dir", help="for Spark checkpoints (default: TMPDIR)")
    return parser.parse_args(arguments)


def _plan(given: argparse.Namespace) -> Plan:
    if given.quick:
        return Plan(seed=given.seed, events=8_000, per_file=2_000)
    files = max(round(EVENTS * given.scale / _PER_FILE), 4)
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
    settings = _chosen(given.settings, [*bench_nexmark_report.SETTINGS])
    plan = _plan(given)
    host = bench_env.describe_host(work)
    fresh = host | {"quick": given.quick, "plan": asdict(plan), "checked": {}, "cells": {}}
    results = _begun(given.out, fresh)
    out = given.out or bench_env.results_path(results, prefix="nexmark-")

    def place(name: str) -> Path:
        shutil.rmtree(work / "run", ignore_errors=True)
        print(name, file=sys.stderr, flush=True)
        return work / "run"

    def checked(contender: str) -> None:
        able = [query for query in queries if runs(contender, query)]
        found = check(contender, able, place(f"{contender}: check"))
        results["checked"].setdefault(contender, {}).update(found)
        for query in able if "recovery" in settings and contender not in FLINKS else []:
            where = place(f"{contender}: check {query}, killed")
            rows = check_recovery(contender, query, where)
            results.setdefault("recovered", {}).setdefault(contender, {})[query] = rows
        bench_env.write_results(results, out)

    for contender in contenders if not given.no_check else []:
        checked(contender)
    for setting in settings if not given.check_only else []:
        for i, query in enumerate(queries):
            cell = results["cells"].setdefault(
                f"{setting}/{query}",
                {"setting": setting, "query": query, "budget_mib": None, "contenders": {}},
            )
            if setting == "budget" and cell["budget_mib"] is None:
                cell["in_memory"] = measure(OURS, query, plan, place(f"{query}: how large it is"))
                cell["budget_mib"] = given.budget_mib or budget_mib(cell["in_memory"])
            for contender in in_turn(contenders, i):
                if runs(contender, query, setting):
                    where = place(f"{contender}: {setting}, {query}")
                    raw = measure(contender, query, plan, where, setting, cell["budget_mib"])
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
