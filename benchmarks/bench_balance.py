# SPDX-License-Identifier: Apache-2.0
"""Measures a cluster that grows from one executor to four, and then loses one by kill -9.

    python benchmarks/bench_balance.py [--only millpond,...] [--out DIR]

Real processes on this machine: a master, workers of one core, a driver. Each of 16 tasks waits 100
ms beside its work, as for a service: so executors that share this machine's cores show what
executors with their own would. The places of tasks are those of Spark's event log.

Contenders: Millpond; Millpond with `balance.enabled=false`; Spark's RocksDB store; and Millpond on
four executors from the start. Writes `benchmarks/results/balance-*.json`, the chart
`docs/img/balance.svg`, and prints a table.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
from benchmarks.bench_balance_chart import svg  # noqa: E402
from benchmarks.bench_cluster import ROCKSDB, Batches, event_log, measure_each, places  # noqa: E402
from benchmarks.bench_env import describe_host  # noqa: E402
from integration.cluster import STATE, Application, Cluster  # noqa: E402
from integration.processes import wait_until  # noqa: E402

PARTITIONS, WAIT_MS = 16, 100
ALONE, GROWN, AFTER = 10, 20, 12  # batches: with one executor, with four, after the loss
CONTENDERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "millpond": ("Millpond", 1, {}),
    "millpond-off": ("Millpond, balance off", 1, {STATE + "millpond.balance.enabled": "false"}),
    "rocksdb": ("Spark's RocksDB store", 1, ROCKSDB),
    "millpond-four": ("Millpond, four from the start", 4, {}),
}
_JOB = REPOSITORY / "benchmarks" / "bench_balance_job.py"


def run(name: str, work: Path) -> dict[str, Any]:
    """Return the batches of a contender: number, ms, and tasks by executor."""
    _, workers, settings = CONTENDERS[name]
    log = work / "events"
    conf = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.default.parallelism": "2",
        **event_log(log),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        STATE + "maintenanceInterval": "5s",
        **settings,
    }
    with (
        Cluster(work / "cluster", workers=workers) as cluster,
        Application(cluster, work / "app", conf, job=_JOB) as app,
    ):
        wait_until(lambda: len(cluster.executors()) == workers, seconds=60, what="the executors")
        app.call("start", name="q", query="waiting", format=2, wait_ms=WAIT_MS)
        batches = Batches(app.home / "checkpoints" / "q" / "commits", seconds=240)
        marks = {"joined": batches.wait(ALONE)}
        if workers < 4:
            cluster.add_workers(4 - workers)
            wait_until(lambda: len(cluster.executors()) == 4, seconds=60, what="four executors")
            marks["joined"] = batches.last()
        marks["killed"] = batches.wait(GROWN)
        os.kill(next(e.pid for e in cluster.executors() if e.id == "1"), signal.SIGKILL)
        batches.wait(AFTER)
        times = dict(app.call("progress", name="q"))
        app.call("stop", name="q", seconds=60)
        application = app.call("app")
    tasks = places(log / application)
    return {
        "marks": marks,
        "batches": [
            {"batch": n, "ms": times[n], "tasks": tasks[n]} for n in sorted(times) if n in tasks
        ],
    }


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the goals are about.

    balanced_after: batches after the join until no executor had more than 1.25 times its share, for
    good until the loss; None: never. times_share: at the end. *_ms: medians.
    """
    joined, killed = result["marks"]["joined"], result["marks"]["killed"]
    grown = [b for b in result["batches"] if joined < b["batch"] <= killed]
    after = [b for b in result["batches"] if b["batch"] > killed]

    def over(batch: dict[str, Any], executors: int) -> float:
        return float(max(batch["tasks"].values())) / (PARTITIONS / executors)

    late = [i for i, b in enumerate(grown, 1) if over(b, 4) > 1.25]
    balanced = (
        (max(late) if late else 0)
        if len(late) < len(grown) and (not late or max(late) < len(grown))
        else None
    )
    return {
        "alone_ms": median(b["ms"] for b in result["batches"] if 2 < b["batch"] <= joined),
        "grown_ms": median(b["ms"] for b in grown[-10:]),
        "worst_grown_ms": max(b["ms"] for b in grown[:10]),
        "balanced_after": balanced,
        "times_share": round(over(grown[-1], 4), 2),
        "loss_ms": max(b["ms"] for b in after[:3]),
        "after_ms": median(b["ms"] for b in after[-6:]),
        "times_share_after": round(over(after[-1], 4 if len(after[-1]["tasks"]) == 4 else 3), 2),
    }


def table(results: dict[str, Any]) -> str:
    """Return the Markdown table."""
    rows = [
        "| | one executor, ms a batch | four, ms | balanced after | longest of ten after the join,"
        " ms | most, in shares | batch of the loss, ms | later, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        s = summary(result)
        after = "never" if s["balanced_after"] is None else f"{s['balanced_after']} batches"
        rows.append(
            f"| {CONTENDERS[name][0]} | {s['alone_ms']:.0f} | {s['grown_ms']:.0f} | {after} |"
            f" {s['worst_grown_ms']:.0f} | {s['times_share']} | {s['loss_ms']:.0f} |"
            f" {s['after_ms']:.0f} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--add", type=Path, help="a result to which the new ones are added")
    arguments = parser.parse_args()
    document = describe_host(REPOSITORY) | {
        "quick": False,
        "partitions": PARTITIONS,
        "wait_ms": WAIT_MS,
    }
    names = arguments.only.split(",")
    results = measure_each(
        names, CONTENDERS, run, summary, document, add=arguments.add, prefix="balance-"
    )
    labels = {name: CONTENDERS[name][0] for name in results}
    (REPOSITORY / "docs/img/balance.svg").write_text(svg(results, labels))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
