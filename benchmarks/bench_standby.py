# SPDX-License-Identifier: Apache-2.0
"""Measures the first batch after a host is lost, with many keys.

    python benchmarks/bench_standby.py [--only millpond,...] [--keys N] [--s3] [--add FILE]

Real processes on this machine: a master, two workers of one core, a driver. A count in 8 partitions
gets its keys first; then a batch of 20,000 rows comes every five seconds. Between two batches one
worker and its executor are killed with -9: the other executor does all from then on.

Contenders: Millpond with `standby.enabled=true`; Millpond; Spark's RocksDB store. With `--s3`
Millpond's state is on an S3 server on loopback, which answers after 20 ms and notes each request:
what followers read is the difference of the first two. Writes `benchmarks/results/standby-*.json`,
and prints a table.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
from benchmarks.bench_cluster import ROCKSDB, Batches, event_log, measure_each, places  # noqa: E402
from benchmarks.bench_env import describe_host  # noqa: E402
from benchmarks.bench_s3 import pond, pond_settings  # noqa: E402
from benchmarks.bench_s3_query import kind_of, pond_log  # noqa: E402
from integration.cluster import STATE, Application, Cluster  # noqa: E402
from integration.processes import processes, wait_until  # noqa: E402

PARTITIONS, FILL_ROWS, ROWS, EVERY = 8, 1_000_000, 20_000, "5 seconds"
BEFORE, AFTER = 8, 6  # batches
LATENCY_MS = 20
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "millpond-standby": ("Millpond, standby", {STATE + "millpond.standby.enabled": "true"}),
    "millpond": ("Millpond", {}),
    "rocksdb": ("Spark's RocksDB store", ROCKSDB),
}
_JOB = REPOSITORY / "benchmarks" / "bench_standby_job.py"


class Storage:
    """Where the state is: beside the Spark checkpoint, or on an S3 server that notes requests."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self.conf = {} if endpoint is None else pond_settings(endpoint)

    def take(self) -> dict[str, dict[str, int]]:
        """Return requests and bytes of each `<operation> <kind>` since the last call."""
        if self._endpoint is None:
            return {}
        requests: Counter[str] = Counter()
        carried: Counter[str] = Counter()
        for _, operation, key, size_bytes in pond_log(self._endpoint):
            name = f"{operation} {kind_of(key)}"
            requests[name] += 1
            carried[name] += size_bytes
        return {n: {"requests": requests[n], "bytes": carried[n]} for n in sorted(requests)}


def run(name: str, work: Path, keys: int, *, on_s3: bool) -> dict[str, Any]:
    """Return the times of a contender in ms, and what its executors took."""
    with pond(work / "pond", LATENCY_MS) if on_s3 else nullcontext() as endpoint:
        return _run(name, work, keys, Storage(endpoint))


def _run(name: str, work: Path, keys: int, state: Storage) -> dict[str, Any]:
    log = work / "events"
    conf = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.default.parallelism": "2",
        **event_log(log),
        "spark.executor.memory": "2g",
        "spark.executor.memoryOverhead": "4g",
        "spark.executor.extraJavaOptions": "",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        STATE + "maintenanceInterval": "10s",
        STATE + "millpond.memory.budget": "3g",
        **CONTENDERS[name][1],
        **state.conf,
    }
    is_ours = name != "rocksdb"
    with (
        Cluster(work / "cluster", workers=0) as cluster,
        Application(cluster, work / "app", conf, job=_JOB) as app,
    ):
        cluster.add_workers(2, memory_mb=7168)
        wait_until(lambda: len(cluster.executors()) == 2, seconds=60, what="the executors")
        batches = Batches(app.home / "checkpoints" / "q" / "commits", seconds=600)

        query: dict[str, Any] = {"name": "q", "query": "counted", "format": 1, "keys": keys}
        app.call("start", rows=FILL_ROWS, **query)
        batches.wait(keys // FILL_ROWS)
        app.call("stop", name="q", seconds=120)
        state.take()
        app.call("start", rows=ROWS, every=EVERY, **query)
        batches.wait(BEFORE)
        if name == "millpond-standby":
            wait_until(
                lambda: (
                    sum(r["standby_stores"] for r in app.call("reports").values()) == PARTITIONS
                ),
                seconds=120,
                what="each store to be followed",
            )
        requests_of_start = state.take()
        batches.wait(BEFORE)
        requests_of_batches = state.take()
        reports = app.call("reports") if is_ours else {}
        rss_mb = {e.id: _rss_mb(e.pid) for e in cluster.executors()}
        killed = batches.wait(1)
        victim = next(e for e in cluster.executors() if e.id == "1")
        worker = next(p.parent for p in processes() if p.pid == victim.pid)
        for pid in (worker, victim.pid):
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: "Lost executor 1 " in app.log_path.read_text(errors="replace"),
            seconds=60,
            what="the driver to miss the executor",
        )
        noticed = batches.last()
        batches.wait(AFTER)
        times = dict(app.call("progress", name="q"))
        app.call("stop", name="q", seconds=60)
        application = app.call("app")
        logs = app.executor_logs()["0"] if is_ours else ""
    tasks = places(log / application)
    return {
        "keys": keys,
        "killed": killed,
        "noticed": noticed,
        "batches": [{"batch": n, "ms": times[n], "tasks": tasks[n]} for n in sorted(times)],
        "memory_used_bytes": {e: r["memory_used_bytes"] for e, r in reports.items()},
        "rss_mb": rss_mb,
        "requests_of_start": requests_of_start,
        "requests_of_batches": requests_of_batches,
        "restores": logs.count("store opened"),
        "takeovers": logs.count("store followed"),
    }


def _rss_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the goal is about, in ms: medians before and later, and the first batch after."""
    killed = result["killed"]
    before = [b for b in result["batches"] if killed - BEFORE < b["batch"] <= killed]
    after = [b for b in result["batches"] if b["batch"] > killed]
    usual = median(b["ms"] for b in before)
    return {
        "stores_lost": before[-1]["tasks"].get("1", 0),
        "usual_ms": usual,
        "first_ms": after[0]["ms"],
        "times": round(after[0]["ms"] / usual, 2),
        "second_ms": after[1]["ms"],
        "later_ms": median(b["ms"] for b in after[2:]),
        "memory_mb": round(sum(result["memory_used_bytes"].values()) / 2**20),
        "rss_mb": sum(result["rss_mb"].values()),
        "start": _read(result.get("requests_of_start", {})),
        "batch": tuple(round(n / BEFORE, 1) for n in _read(result.get("requests_of_batches", {}))),
    }


def _read(requests: dict[str, dict[str, int]]) -> tuple[float, float]:
    """Return how many GETs were made, and the MB that they brought."""
    gets = [found for name, found in requests.items() if name.startswith("GET ")]
    return sum(f["requests"] for f in gets), round(sum(f["bytes"] for f in gets) / 1e6, 2)


def table(results: dict[str, Any]) -> str:
    """Return the Markdown table."""
    rows = [
        "| | keys lost | usual batch, ms | first after the loss, ms | times | second, ms |"
        " later, on one executor, ms | memory of both executors' stores, MB | resident, MB |"
        " GETs and MB of the start | of a batch |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        s = summary(result)
        lost = result["keys"] * s["stores_lost"] // PARTITIONS
        rows.append(
            f"| {CONTENDERS[name][0]} | {lost:,} | {s['usual_ms']:.0f} | {s['first_ms']} |"
            f" {s['times']} | {s['second_ms']} | {s['later_ms']:.0f} | {s['memory_mb']} |"
            f" {s['rss_mb']} | {s['start'][0]}, {s['start'][1]} |"
            f" {s['batch'][0]}, {s['batch'][1]} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--keys", type=int, default=20_000_000, help="of all partitions")
    parser.add_argument("--s3", action="store_true", help="the state of Millpond is on S3")
    parser.add_argument("--add", type=Path, help="a result to which the new ones are added")
    arguments = parser.parse_args()
    document = describe_host(REPOSITORY) | {"quick": False, "rows": ROWS, "partitions": PARTITIONS}
    document["s3_latency_ms"] = LATENCY_MS if arguments.s3 else None
    names = [n for n in arguments.only.split(",") if n != "rocksdb" or not arguments.s3]

    def measured(name: str, work: Path) -> dict[str, Any]:
        return run(name, work, arguments.keys, on_s3=arguments.s3)

    results = measure_each(
        names, CONTENDERS, measured, summary, document, add=arguments.add, prefix="standby-"
    )
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
