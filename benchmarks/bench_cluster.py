# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of a cluster share: who did which task, batches to wait for, results."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_contenders import BASELINE
from benchmarks.bench_contenders import CONTENDERS as STORES
from benchmarks.bench_env import results_path
from integration.processes import wait_until

ROCKSDB = STORES[BASELINE].conf


def event_log(folder: Path) -> dict[str, str]:
    """Return the settings by which Spark writes one plain event log to `folder`, and make it."""
    folder.mkdir(parents=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


class Batches:
    """The batches of a query, by its log of commits."""

    def __init__(self, commits: Path, *, seconds: float) -> None:
        self._commits = commits
        self._seconds = seconds

    def last(self) -> int:
        """Return the number of the last one; -1: none."""
        if not self._commits.exists():
            return -1
        return max((int(n) for n in os.listdir(self._commits) if n.isdigit()), default=-1)

    def wait(self, count: int) -> int:
        """Wait for so many more. Return the number of the last."""
        wanted = self.last() + count
        wait_until(lambda: self.last() >= wanted, seconds=self._seconds, what=f"batch {wanted}")
        return self.last()


def places(log: Path) -> dict[int, dict[str, int]]:
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


def measure_each(
    names: list[str],
    order: Mapping[str, Any],
    run: Callable[[str, Path], dict[str, Any]],
    summary: Callable[[dict[str, Any]], dict[str, Any]],
    document: dict[str, Any],
    *,
    add: Path | None,
    prefix: str,
) -> dict[str, Any]:
    """Measure contenders one after the other, and write the results after each.

    Args:
        order: all contenders, in the order of the results.
        add: a file with results that the new ones are added to.
    Returns: the results by contender.
    """
    out = add or results_path(document, prefix=prefix)
    kept = json.loads(out.read_text())["contenders"] if out.exists() else {}
    results: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            kept[name] = run(name, Path(work) / name)
        print(name, summary(kept[name]), flush=True)
        results = {name: kept[name] for name in order if name in kept}
        out.write_text(json.dumps(document | {"contenders": results}, indent=1) + "\n")
    return results
