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
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
from benchmarks.bench_balance_chart import svg  # noqa: E402
from benchmarks.bench_env import describe_host, results_path  # noqa: E402
from integration.cluster import STATE, Application, Cluster  # noqa: E402
from integration.processes import wait_until  # noqa: E402

PARTITIONS, WAIT_MS = 16, 100
ALONE, GROWN, AFTER = 10, 20, 12  # batches: with one executor, with four, after the loss
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONTENDERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "millpond": ("Millpond", 1, {}),
    "millpond-off": ("Millpond, balance off", 1, {STATE + "millpond.balance.enabled": "false"}),
    "rocksdb": (
        "Spark's RocksDB store",
        1,
        {
            STATE + "providerClass": ROCKSDB,
            STATE + "rocksdb.changelogCheckpointing.enabled": "true",
        },
    ),
    "millpond-four": ("Millpond, four from the start", 4, {}),
}
_JOB = REPOSITORY / "benchmarks" / "bench_balance_job.py"


def run(name: str, work: Path) -> dict[str, Any]:
    """Return the batches of a contender: number, ms, and tasks by executor."""
    _, workers, settings = CONTENDERS[name]
    log = work / "events"
    log.mkdir(parents=True)
    conf = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.default.parallelism": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
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
        commits = app.home / "checkpoints" / "q" / "commits"

        def batches(count: int) -> int:
            """Wait for so many more. Return the number of the last."""
            wanted = _last(commits) + count
            wait_until(lambda: _last(commits) >= wanted, seconds=240, what=f"batch {wanted}")
            return _last(commits)

        marks = {"joined": batches(ALONE)}
        if workers < 4:
            cluster.add_workers(4 - workers)
            wait_until(lambda: len(cluster.executors()) == 4, seconds=60, what="four executors")
            marks["joined"] = _last(commits)
        marks["killed"] = batches(GROWN)
        os.kill(next(e.pid for e in cluster.executors() if e.id == "1"), signal.SIGKILL)
        batches(AFTER)
        times = dict(app.call("progress", name="q"))
        app.call("stop", name="q", seconds=60)
        application = app.call("app")
    places = _places(log / application)
    return {
        "marks": marks,
        "batches": [
            {"batch": n, "ms": times[n], "tasks": places[n]} for n in sorted(times) if n in places
        ],
    }


def _last(commits: Path) -> int:
    return (
        max((int(n) for n in os.listdir(commits) if n.isdigit()), default=-1)
        if (commits.exists())
        else -1
    )


def _places(log: Path) -> dict[int, dict[str, int]]:
    """Return by batch, from Spark's event log, the tasks with state that each executor ended."""
    batch_of: dict[int, int] = {}
    found: dict[int, dict[int, str]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            batch = event.get("Properties", {}).get("streaming.sql.batchId")
            for stage in event["Stage Infos"] if batch is not None else ():
                if any("StateStore" in rdd["Name"] for rdd in stage["RDD Info"]):
                    batch_of[stage["Stage ID"]] = int(batch)
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in batch_of:
            info = event["Task Info"]
            if event["Task End Reason"]["Reason"] == "Success":
                tasks = found.setdefault(batch_of[event["Stage ID"]], {})
                tasks[info["Index"]] = info["Executor ID"]
    return {n: dict(Counter(tasks.values())) for n, tasks in found.items()}


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
    out = arguments.add or results_path(document, prefix="balance-")
    kept = json.loads(out.read_text())["contenders"] if out.exists() else {}
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as work:
            kept[name] = run(name, Path(work) / name)
        print(name, summary(kept[name]), flush=True)
        results = {name: kept[name] for name in CONTENDERS if name in kept}
        out.write_text(json.dumps(document | {"contenders": results}, indent=1) + "\n")
    labels = {name: CONTENDERS[name][0] for name in results}
    (REPOSITORY / "docs/img/balance.svg").write_text(svg(results, labels))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
