#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what `millpond ui` costs a running query: `make bench-ui`, or `--help`.

A query runs all the time. Phases without and with a page that follows it take turns: the page asks
for the newest batch each second, and for the query, its history and its key groups after each new
one, as a browser does. Results: JSON below `benchmarks/results/`, and after a full run a section of
docs/benchmarks-serve.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_env import REPOSITORY, BenchError
from benchmarks.bench_serve import Plan, batches_of, of_phase, pinned, querying

_PAGE = REPOSITORY / "docs" / "benchmarks-serve.md"
_BEGIN = "<!-- results of the page: written by benchmarks/bench_ui.py, do not edit -->"
_END = "<!-- end of results of the page -->"
_TOKEN = "a-token-of-the-benchmark"
_VIEWS = ("query", "history", "groups")


@contextlib.contextmanager
def showing(work: Path, cores: str) -> Iterator[str]:
    """Run the server beside the block. Yields its address."""
    (work / "token").write_text(_TOKEN)
    command = [sys.executable, "-m", "millpond.cli.main", "ui", str(work / "checkpoint")]
    command += ["--port", "0", "--token-file", str(work / "token")]
    with subprocess.Popen([*pinned(cores), *command], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGTERM)


def _ask(address: str, path: str) -> Any:
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {_TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def follow(address: str, seconds: float, checkpoint: Path) -> tuple[list[float], list[float]]:
    """Follow the query as a page does.

    Returns: how long each view took, in ms; how long after its commit each batch was on the page,
    in ms.
    """
    (place,) = _ask(address, "/api/places")["places"]
    views: list[float] = []
    lags: list[float] = []
    seen, end = None, time.monotonic() + seconds
    while time.monotonic() < end:
        batch = _ask(address, f"/api/{place['id']}/pulse")["batch"]
        if batch != seen:
            for view in _VIEWS:
                begun = time.monotonic()
                _ask(address, f"/api/{place['id']}/{view}")
                views.append((time.monotonic() - begun) * 1000)
            if seen is not None:
                with contextlib.suppress(FileNotFoundError):
                    committed_s = (checkpoint / "commits" / str(batch)).stat().st_mtime
                    lags.append((time.time() - committed_s) * 1000)
            seen = batch
        time.sleep(1)
    return views, lags


def measure(plan: Plan, work: Path, query_cores: str, server_cores: str) -> dict[str, Any]:
    """Return all figures."""
    alone: list[list[int]] = []
    beside: list[list[int]] = []
    views: list[float] = []
    lags: list[float] = []
    with querying(plan, work, query_cores) as file:
        for _ in range(plan.rounds):
            begin = time.time()
            time.sleep(plan.seconds)
            end = time.time()
            with showing(work, server_cores) as address:
                begun = time.time()
                one, other = follow(address, plan.seconds, work / "checkpoint")
                ended = time.time()
            views += one
            lags += other
            batches = batches_of(file)
            alone.append(of_phase(batches, begin, end))
            beside.append(of_phase(batches, begun, ended))
    if not all(alone) or not all(beside) or not lags:
        raise BenchError("a phase saw no batch: measure for longer")
    all_alone = median(ms for one in alone for ms in one)
    all_beside = median(ms for one in beside for ms in one)
    return {
        "views_ms": _summary(views),
        "lag_ms": _summary(lags),
        "batch_ms": {"alone": all_alone, "beside": all_beside},
        "batches": [sum(map(len, alone)), sum(map(len, beside))],
        "slower_percent": round((all_beside / all_alone - 1) * 100, 1),
        "of_each_round": [
            round((median(b) / median(a) - 1) * 100, 1) for a, b in zip(alone, beside, strict=True)
        ],
    }


def _summary(found: list[float]) -> dict[str, int]:
    return {"median": round(median(found)), "largest": round(max(found)), "of": len(found)}


def report(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    plan, figures, host = Plan(**results["plan"]), results["figures"], results["host"]
    lag, views, ms = figures["lag_ms"], figures["views_ms"], figures["batch_ms"]
    rounds = ", ".join(f"{share:+.1f} %" for share in figures["of_each_round"])
    dirty = ", with changes" if results["dirty"] else ""
    lines = [
        f"- A batch of the query: {ms['alone']:,.0f} ms alone, {ms['beside']:,.0f} ms beside a page"
        f" that follows it: {figures['slower_percent']:+.1f} % (medians of"
        f" {figures['batches'][0]} and {figures['batches'][1]} batches). By round: {rounds}.",
        f"- A commit is on the page after {lag['median']:,} ms (median of {lag['of']}; the slowest:"
        f" {lag['largest']:,} ms). A view takes the server {views['median']:,} ms (median of"
        f" {views['of']}; the slowest: {views['largest']:,} ms).",
    ]
    conditions = (
        f"Under these conditions: {plan.keys:,} keys in {plan.partitions} partitions,"
        f" {plan.rows:,} rows a batch, a batch each {plan.trigger}; {plan.rounds} rounds of"
        f" {plan.seconds} s without and {plan.seconds} s with a page. Query on processor"
        f" {results['query_cores'] or 'any'}, server on {results['server_cores'] or 'any'}, of"
        f" {host['cores']} ({host['cpu']}); load average at the start {host['load_average_1m']}."
        f" Spark {results['versions']['spark']}, commit `{results['commit'][:8]}`{dirty},"
        f" {results['time_utc']}."
    )
    told = [textwrap.fill(line, 100, subsequent_indent="  ") for line in lines]
    return "\n".join(["", *told, "", textwrap.fill(conditions, 100)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; figures mean nothing")
    parser.add_argument("--rounds", type=int, default=6, help="default: 6")
    parser.add_argument("--seconds", type=int, default=20, help="of each phase (default: 20)")
    parser.add_argument("--query-cores", default="", help="for taskset -c (default: any)")
    parser.add_argument("--server-cores", default="", help="for taskset -c (default: any)")
    given = parser.parse_args()
    plan = Plan(rounds=given.rounds, seconds=given.seconds)
    if given.quick:
        plan = Plan(keys=2000, rows=1000, partitions=2, rounds=1, seconds=6)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-ui-") as directory:
            work = Path(directory)
            results = bench_env.describe_host(work) | {
                "plan": asdict(plan),
                "quick": given.quick,
                "query_cores": given.query_cores,
                "server_cores": given.server_cores,
            }
            results["figures"] = measure(plan, work, given.query_cores, given.server_cores)
    except BenchError as e:
        print(f"bench-ui: {e}", file=sys.stderr)
        return 1
    path = bench_env.results_path(results, prefix="ui-")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(report(results))
    print(f"results: {path}")
    if not given.quick:
        bench_env.replace_generated(_PAGE, _BEGIN, _END, report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
