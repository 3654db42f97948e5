#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `millpond.lookup`: `make bench-lookup`, or `--help`.

A query makes a state with many keys on a local disk. Then new readers look up a random key each
(cold), and one open reader many (warm). The same again with the state on an S3 server with a
latency, where each request counts. Results: JSON below `benchmarks/results/`, a table on stdout,
and after a full run docs/benchmarks-lookup.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_contenders import CONTENDERS
from benchmarks.bench_env import REPOSITORY, BenchError
from benchmarks.bench_query import open_session
from benchmarks.bench_s3 import pond

_PAGE = REPOSITORY / "docs" / "benchmarks-lookup.md"
_BEGIN = "<!-- results: written by benchmarks/bench_lookup.py, do not edit -->"
_END = "<!-- end of results -->"
_PLACE = "s3://pond/states/q"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Args:
        batches: of the query. The first ten make the keys. Each of the others changes `changed`.
        trigger_s: how often a batch begins. Spark's maintenance makes snapshots in between.
        cold, warm, cold_s3: how many look-ups.
        latency_ms: of a request to the S3 server.
    """

    keys: int = 10_000_000
    partitions: int = 4
    changed: int = 20_000
    batches: int = 16
    trigger_s: int = 12
    cold: int = 200
    warm: int = 3000
    cold_s3: int = 40
    latency_ms: float = 20


def run_query(plan: Plan, checkpoint: Path, work: Path, rows: int, last: int) -> None:
    """Run the query until the batch `last`, with `rows` a batch."""
    conf = CONTENDERS["millpond"].conf | {
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": str(bench_env.millpond_jar(None)),
        "spark.local.dir": str(work / "local"),
        "spark.sql.streaming.stateStore.maintenanceInterval": f"{plan.trigger_s * 1000 // 4}ms",
    }
    spark = open_session("millpond-lookup-bench", conf)
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", plan.partitions)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    source = source.option("startTimestamp", 1_000_000).option("numPartitions", 2)
    numbers = source.load().select((f.col("value") % plan.keys).alias("key"))
    writer = numbers.groupBy("key").count().writeStream.format("noop").outputMode("update")
    writer = writer.trigger(processingTime=f"{plan.trigger_s} seconds")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    while (progress := query.lastProgress) is None or progress.batchId < last:
        if not query.isActive:
            raise BenchError(f"the query ended: {query.exception()}")
        time.sleep(0.1)
    query.stop()
    spark.stop()


def to_s3(checkpoint: Path, endpoint: str) -> None:
    """Move the state to the server. Spark's logs stay, as with the option storage.uri."""
    from millpond.format import layout, spark_names
    from millpond.storage import LocalStorage, open_storage
    from millpond.storage.place import place_record

    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    local, remote = LocalStorage(str(checkpoint), fsync=False), open_storage(_PLACE)
    for info in list(local.list("")):
        if not spark_names.is_sparks(info.key):
            path = local.local_path(info.key)
            assert path is not None
            remote.put_file(info.key, path)
            local.delete([info.key])
    local.put_bytes(layout.STORAGE_KEY, place_record(_PLACE))


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def _cold(checkpoint: Path, key: int, batch: int) -> None:
    import millpond

    with millpond.lookup(checkpoint, batch=batch) as state:
        if len(state.get({"key": key})) != 1:
            raise BenchError(f"the state has no key {key}")


def _of(times: list[float]) -> dict[str, float]:
    return {
        "median_ms": round(median(times), 2),
        "p99_ms": round(quantiles(times, n=100, method="inclusive")[98], 2),
        "largest_ms": round(max(times), 2),
    }


def measure(plan: Plan, work: Path) -> dict[str, Any]:
    """Return the figures."""
    import millpond
    from millpond.state.selection import open_state

    checkpoint, chance = work / "checkpoint", random.Random(7)
    last = plan.batches - 1
    run_query(plan, checkpoint, work, plan.keys // 10, 9)
    run_query(plan, checkpoint, work, plan.changed, last)

    def key() -> int:
        return chance.randrange(plan.keys // 10 * 9)

    _cold(checkpoint, key(), last)  # imports
    figures: dict[str, Any] = {
        "state_bytes": open_state(checkpoint, None).image.size_bytes,
        "cold": _of([_timed(lambda: _cold(checkpoint, key(), last)) for _ in range(plan.cold)]),
    }
    # No snapshot is that old.
    figures["long_tail"] = _of(
        [_timed(lambda: _cold(checkpoint, key(), 8)) for _ in range(plan.cold // 10)]
    )
    with millpond.lookup(checkpoint) as state:
        for _ in range(100):
            state.get({"key": key()})
        figures["warm"] = _of([_timed(lambda: state.get({"key": key()})) for _ in range(plan.warm)])
    with pond(work / "pond", plan.latency_ms) as endpoint:
        to_s3(checkpoint, endpoint)
        figures["s3"] = [
            _on_s3(checkpoint, endpoint, key, batch, plan.cold_s3)
            for batch in range(plan.batches - 5, plan.batches)
        ]
    return figures


def _on_s3(
    checkpoint: Path, endpoint: str, key: Callable[[], int], batch: int, count: int
) -> dict[str, Any]:
    """Return the requests and times of cold look-ups after a batch."""
    _cold(checkpoint, key(), batch)
    times, requests, sent = [], [], []
    kinds: dict[str, list[int]] = {"changelog": [], "sst": []}
    for _ in range(count):
        _log(endpoint)
        times.append(_timed(lambda: _cold(checkpoint, key(), batch)))
        log = _log(endpoint)
        requests.append(len(log))
        sent.append(sum(entry[3] for entry in log))
        for kind, found in kinds.items():
            found.append(sum(entry[2].endswith(f".{kind}") for entry in log))
    return {
        "batch": batch,
        "requests": {"median": median(requests), "most": max(requests)},
        "changelogs": max(kinds["changelog"]),
        "ssts": {"median": median(kinds["sst"]), "most": max(kinds["sst"])},
        "median_bytes": median(sent),
        **_of(times),
    }


def _log(endpoint: str) -> list[tuple[int, str, str, int]]:
    """Take the server's log of requests."""
    with urllib.request.urlopen(f"{endpoint}/-/log") as answer:
        found: list[tuple[int, str, str, int]] = json.loads(answer.read())
    return found


def report(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    host, plan, figures = results["host"], Plan(**results["plan"]), results["figures"]
    cold, warm, tail = figures["cold"], figures["warm"], figures["long_tail"]
    in_tail = plan.keys // 10 * 9 // plan.partitions
    rows = [
        "| On a local disk | median | p99 | largest |",
        "|---|---|---|---|",
        f"| cold: a new reader, one key | {cold['median_ms']:.1f} ms | {cold['p99_ms']:.1f} ms"
        f" | {cold['largest_ms']:.1f} ms |",
        f"| warm: each key of an open one | {warm['median_ms']:.2f} ms | {warm['p99_ms']:.2f} ms"
        f" | {warm['largest_ms']:.2f} ms |",
        f"| cold, without a snapshot: {in_tail:,} rows in changelogs"
        f" | {tail['median_ms']:.0f} ms | - | {tail['largest_ms']:.0f} ms |",  # too few for p99
        "",
        "| On S3, cold, after batch | requests | of them changelogs | of them SSTs | bytes"
        " | median | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in figures["s3"]:
        rows.append(
            f"| {one['batch']} | {one['requests']['median']:g} (at most {one['requests']['most']})"
            f" | {one['changelogs']} | {one['ssts']['median']:g} (at most {one['ssts']['most']})"
            f" | {one['median_bytes'] / 2**20:.1f} MiB | {one['median_ms']:.0f} ms"
            f" | {one['largest_ms']:.0f} ms |"
        )
    dirty = ", with changes" if results["dirty"] else ""
    conditions = (
        f"Under these conditions: {plan.keys:,} keys in {plan.partitions} partitions,"
        f" {plan.changed:,} rows a batch in the end,"
        f" {figures['state_bytes'] / 2**20:.0f} MiB of state; {plan.cold} cold look-ups and"
        f" {plan.warm} warm ones of random keys in one process, files in the page cache;"
        f" {plan.cold_s3} on S3 after each batch, {plan.latency_ms:g} ms a request, no limit of"
        f" bandwidth, Spark's logs in a directory. {host['cores']} processors ({host['cpu']}),"
        f" {host['file_system']}; load average at the start {host['load_average_1m']}. Spark"
        f" {results['versions']['spark']}, Python {results['versions']['python']}, commit"
        f" `{results['commit'][:8]}`{dirty}, {results['time_utc']}."
    )
    return "\n".join(["", *rows, "", textwrap.fill(conditions, 100)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; figures mean nothing")
    parser.add_argument("--work-dir", help="for the state (default: TMPDIR)")
    given = parser.parse_args()
    plan = (
        Plan(keys=20_000, trigger_s=2, changed=500, cold=20, warm=50, cold_s3=3)
        if given.quick
        else Plan()
    )
    try:
        with tempfile.TemporaryDirectory(prefix="bench-lookup-", dir=given.work_dir) as directory:
            work = Path(directory)
            results = bench_env.describe_host(work) | {"plan": asdict(plan), "quick": given.quick}
            results["figures"] = measure(plan, work)
    except BenchError as e:
        print(f"bench-lookup: {e}", file=sys.stderr)
        return 1
    path = bench_env.results_path(results, prefix="lookup-")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(report(results))
    print(f"results: {path}")
    if not given.quick:
        bench_env.replace_generated(_PAGE, _BEGIN, _END, report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
