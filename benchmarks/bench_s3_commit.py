# SPDX-License-Identifier: Apache-2.0
"""Measures the commit of a batch with a million changed rows whose state is on S3.

`python -m benchmarks.bench_s3_commit` has one store in a JVM, and `s3_pond` with a latency and a
link. In Spark checkpoint format 2 the changelog is sent while the batch runs; in format 1 all of it
is sent by the commit, as in both formats before. The two take turns in one JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import bench_env, bench_s3
from benchmarks.bench_s3_query import pond_log
from integration.harness import Harness, Numbered, Provider, Schema, short_conf
from integration.jvm import MILLPOND
from integration.store_model import write_spark_metadata

_NAMES = {1: "sent by the commit", 2: "sent while the batch runs"}


class _Store:
    """A store whose every batch changes all of its rows."""

    def __init__(self, harness: Harness, work: Path, endpoint: str, spark_format: int) -> None:
        self._endpoint = endpoint
        root = write_spark_metadata(
            work / f"format-{spark_format}",
            operator_name="stateStoreSave",
            partitions=1,
            provider_class=MILLPOND,
        )
        (root.parent / "metadata").write_text(f'{{"id":"query-{spark_format}"}}')
        settings = bench_s3.pond_settings(endpoint)
        hadoop = "spark.hadoop."
        self._provider: Provider = harness.open(
            root,
            provider_class=MILLPOND,
            schema=Schema("k bigint", "v string"),
            conf={k: v for k, v in settings.items() if not k.startswith(hadoop)}
            | short_conf({"checkpointFormatVersion": spark_format, "millpond.memory.budget": "2g"})
            | {"spark.sql.shuffle.partitions": "1"},
            hadoop={k.removeprefix(hadoop): v for k, v in settings.items() if k.startswith(hadoop)},
        )
        self._version = 0
        self._id: str | None = None

    def batch(self, rows: int, value_bytes: int, pause_s: float) -> dict[str, Any]:
        """Run one batch, and return what its commit took.

        Args:
            pause_s: the batch goes on for so long after its last row. It is as a batch whose rows
                come more slowly than a loop makes them.
        """
        store = self._provider.store(self._version, self._id)
        pond_log(self._endpoint)
        begun = time.monotonic()
        store.put_numbered(Numbered(rows, f"batch {self._version}", value_bytes))
        written = time.monotonic()
        time.sleep(pause_s)
        requests = pond_log(self._endpoint)
        committing = time.monotonic()
        done = store.commit()
        ended = time.monotonic()
        late = pond_log(self._endpoint)
        self._version, self._id = done.version, done.id
        return {
            "rows_s": written - begun,
            "commit_ms": (ended - committing) * 1000,
            "bytes_before": sum(size for _, _, _, size in requests),
            "bytes_in_commit": sum(size for _, _, _, size in late),
            "requests_in_commit": dict(Counter(operation for _, operation, _, _ in late)),
        }


def measure(given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the batches of both stores in turn, for each link."""
    results: dict[str, Any] = bench_env.describe_host(work) | vars(given)
    for link in given.links:
        with bench_s3.pond(work / f"pond-{link:g}", given.latency_ms, up_mb_per_s=link) as endpoint:
            harness = Harness(work, heap="3g")
            stores = {f: _Store(harness, work / f"{link:g}", endpoint, f) for f in (1, 2)}
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in _NAMES.values()}
            for number in range(given.batches + 1):
                for spark_format, store in stores.items():
                    took = store.batch(given.rows, given.value_bytes, given.pause_s)
                    if number > 0:  # the first one warms up
                        rounds[_NAMES[spark_format]].append(took)
            harness.stop()
        results[f"{link:g} MB/s"] = rounds | {
            "median_ms": {
                name: round(median(run["commit_ms"] for run in runs), 1)
                for name, runs in rounds.items()
            }
        }
    results["load_average_at_end"] = round(os.getloadavg()[0], 2)
    return results


def main() -> None:
    """Measure, and print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=60)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--pause-s", type=float, default=1.0)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument(
        "--links",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[125.0, 0.0],
        help="MB/s of the link that all requests share; 0: what loopback gives",
    )
    with tempfile.TemporaryDirectory(prefix="millpond-bench-s3-commit-") as work:
        print(json.dumps(measure(parser.parse_args(), Path(work)), indent=1))


if __name__ == "__main__":
    main()
