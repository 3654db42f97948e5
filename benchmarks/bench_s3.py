#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures state on an object storage: `make bench-s3`, or `benchmarks/bench_s3.py --help`.

It runs batches and restores over a server that answers each request 20 ms late, and counts the
requests. With `--s3a` the server is MinIO, and Spark's files go there by Hadoop's s3a. Results: JSON
below `benchmarks/results/`, a table on stdout, and after a full run docs/benchmarks-s3.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env, bench_process, bench_s3_report
from benchmarks.bench_contenders import CONTENDERS, Contender
from benchmarks.bench_env import REPOSITORY, BenchError
from benchmarks.bench_query import Scenario

_DOCS = REPOSITORY / "docs" / "benchmarks-s3.md"
_BEGIN, _END = (
    "<!-- results: written by benchmarks/bench_s3.py, do not edit -->",
    "<!-- end of results -->",
)
_BEGIN_S3A = "<!-- results of --s3a: written by benchmarks/bench_s3.py, do not edit -->"
_END_S3A = "<!-- end of the results of --s3a -->"
_BUCKET = "pond"
_OPTION = "spark.sql.streaming.stateStore.millpond."
_KEYS = {
    "fs.s3a.access.key": "any",
    "fs.s3a.secret.key": "any",
    "fs.s3a.endpoint.region": "us-east-1",
}
_GIVES_UP = ("fs.s3a.attempts.maximum", "fs.s3a.retry.limit")
_RAN = ("millpond", "rocksdb-changelog")
_NO_MAINTENANCE = {"spark.sql.streaming.stateStore.maintenanceInterval": "1h"}
# A minute of batches then has snapshots and deletions. Both contenders get the same, but Millpond
# collects by a clock of its own.
_MAINTENANCE = {"spark.sql.streaming.stateStore.maintenanceInterval": "5s", "spark.sql.streaming.minBatchesToRetain": "10"}  # fmt: skip


def scenarios(*, quick: bool, s3a: bool = False) -> list[tuple[Scenario, dict[str, str]]]:
    """Return the queries, each with session options of its own.

    By s3a there are fewer batches: each of Spark's own store takes many seconds.
    """
    if quick:
        return [
            (
                Scenario(name="aggregation", partitions=4, rows=100, warmup=1, measured=2),
                _NO_MAINTENANCE,
            )
        ]
    if s3a:
        return [
            (
                Scenario(name="aggregation", partitions=32, rows=1000, warmup=1, measured=3),
                _NO_MAINTENANCE,
            ),
            (
                Scenario(name="large", partitions=8, rows=200_000, warmup=1, measured=2),
                _MAINTENANCE,
            ),
        ]
    return [
        (
            Scenario(name="aggregation", partitions=64, rows=1000, warmup=3, measured=8),
            _NO_MAINTENANCE,
        ),
        (
            Scenario(name="partitions200", partitions=200, rows=1000, warmup=1, measured=4),
            _NO_MAINTENANCE,
        ),
        (
            Scenario(name="maintenance", partitions=64, rows=1000, warmup=0, measured=25),
            _MAINTENANCE,
        ),
    ]


@contextlib.contextmanager
def pond(
    directory: Path, latency_ms: float, mb_per_s: float = 0, up_mb_per_s: float = 0
) -> Iterator[str]:
    """Run the server with one bucket, and yield its URL."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.s3_pond", "--directory", str(directory)]
    command += ["--latency-ms", str(latency_ms), "--mb-per-s", str(mb_per_s)]
    command += ["--up-mb-per-s", str(up_mb_per_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise BenchError("the S3 server did not start")
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(
            urllib.request.Request(f"{endpoint}/{_BUCKET}", method="PUT")
        ).close()
        yield endpoint
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def pond_settings(endpoint: str) -> dict[str, str]:
    """Return the settings by which a session has Millpond's state on `pond`."""
    return {f"spark.hadoop.{key}": value for key, value in _KEYS.items()} | {
        _OPTION + "storage.uri": f"s3://{_BUCKET}/states",
        _OPTION + "storage.s3.endpoint": endpoint,
    }


@contextlib.contextmanager
def minio(directory: Path, latency_ms: float) -> Iterator[dict[str, str]]:
    """Run MinIO behind the latency, with one bucket. Yield Hadoop's settings by which s3a and
    boto3 reach it.

    Raises: BenchError: what adds the latency did not start.
    """
    from integration.peers.minio import server

    directory.mkdir(parents=True)
    with server.started(directory) as real, proxy(real.endpoint, latency_ms) as endpoint:
        real.client().create_bucket(Bucket=_BUCKET)
        # The tests of MinIO give up early; a benchmark must not.
        found = {k: v for k, v in real.hadoop.items() if k not in _GIVES_UP}
        yield found | {"fs.s3a.endpoint": endpoint}


@contextlib.contextmanager
def proxy(server: str, latency_ms: float) -> Iterator[str]:
    """Run what adds the latency to a server on loopback, and notes requests. Yield its URL.

    Raises: BenchError: it did not start.
    """
    command = [sys.executable, "-m", "benchmarks.s3_proxy", "--port", server.rpartition(":")[2]]
    command += ["--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise BenchError("the proxy before the server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _need_s3a() -> None:
    """Raises: BenchError: MinIO or the jars of s3a are not there."""
    from integration.peers.minio import parts

    if not parts.fetched():
        raise BenchError(
            "MinIO or the jars of s3a are not there: `python -m integration.peers.minio` fetches"
            " them, or says what it lacks"
        )


class _Run:
    """One invocation."""

    def __init__(self, given: argparse.Namespace, work_dir: Path) -> None:
        self.given, self.work_dir = given, work_dir
        self.repetitions = 1 if given.quick else given.repetitions

    def results(self) -> dict[str, Any]:
        """Measure everything that the command line asks for."""
        begin = time.monotonic()
        given = self.given
        results: dict[str, Any] = {"format": 1, **bench_env.describe_host(self.work_dir)}
        results |= {"quick": given.quick, "latency_ms": given.latency_ms, "slots": given.slots}
        results["repetitions"] = self.repetitions
        results["s3a"] = given.s3a
        asked = [] if given.only == "restore" else scenarios(quick=given.quick, s3a=given.s3a)
        results["query_sizes"] = [asdict(scenario) for scenario, _ in asked]
        results["query"] = {scenario.name: {name: [] for name in _RAN} for scenario, _ in asked}
        for scenario, conf in asked:
            # Repetitions of the long run have nearly the same requests.
            for repetition in range(1 if scenario.name == "maintenance" else self.repetitions):
                for name in _RAN if repetition % 2 == 0 else _RAN[::-1]:
                    measured = self._query(CONTENDERS[name], scenario, conf, repetition)
                    results["query"][scenario.name][name].append(measured)
        results["restore"] = {} if given.s3a or given.only == "query" else self._restores()
        results["summary"] = bench_s3_report.summarise(results)
        results["seconds"] = round(time.monotonic() - begin, 1)
        results["load_average_at_end"] = round(os.getloadavg()[0], 2)
        return results

    def _say(self, text: str, begin: float) -> None:
        print(f"bench-s3: {text}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

    def _child(self, module: str, *arguments: str, spec: dict[str, Any], work: Path, timeout_s: float) -> dict[str, Any]:  # fmt: skip
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
        return bench_process.run_spec(command, spec, work_dir=work, timeout_s=timeout_s)

    def _query(
        self, contender: Contender, scenario: Scenario, conf: dict[str, str], repetition: int
    ) -> dict[str, Any]:
        begin = time.monotonic()
        work = self.work_dir / f"{scenario.name}-{contender.name}-{repetition}"
        classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
        jars = [str(classes), *([str(bench_env.millpond_jar(None))] if contender.ours else [])]
        if self.given.s3a:
            return self._query_by_s3a(contender, scenario, conf, work, jars, repetition)
        with pond(work / "pond", self.given.latency_ms) as endpoint:
            session = {
                **contender.conf,
                **conf,
                "spark.local.dir": str(work / "local"),
                "spark.driver.memory": "3g",
                "spark.driver.extraClassPath": ":".join(jars),
                "spark.hadoop.fs.slow.impl": "org.apache.spark.sql.millpond.bench.SlowFileSystem",
                "spark.hadoop.fs.slow.latency.ms": f"{self.given.latency_ms:.0f}",
            }
            if contender.ours:
                session |= pond_settings(endpoint)
            spec = {
                "conf": session,
                "scenario": asdict(scenario),
                "slots": self.given.slots,
                "checkpoint": f"slow:{work}/checkpoint",
                "pond": endpoint,
                "restart": scenario.name != "maintenance",
            }
            result = self._child("bench_s3_query", spec=spec, work=work, timeout_s=1500)
        shutil.rmtree(work)
        self._say(f"{scenario.name} {repetition + 1} {contender.name}", begin)
        return result

    def _query_by_s3a(self, contender: Contender, scenario: Scenario, conf: dict[str, str], work: Path, jars: list[str], repetition: int) -> dict[str, Any]:  # fmt: skip
        """Run with the whole Spark checkpoint on MinIO."""
        from integration.peers.minio import parts

        begin = time.monotonic()
        with minio(work / "minio", self.given.latency_ms) as hadoop:
            session = {
                **contender.conf,
                **conf,
                **{f"spark.hadoop.{name}": value for name, value in hadoop.items()},
                "spark.local.dir": str(work / "local"),
                "spark.driver.memory": "3g",
                "spark.driver.extraClassPath": ":".join([*jars, *map(str, parts.s3a())]),
            }
            spec = {
                "conf": session,
                "scenario": asdict(scenario),
                "slots": self.given.slots,
                "checkpoint": f"s3a://{_BUCKET}/checkpoint",
                "pond": hadoop["fs.s3a.endpoint"],
                "restart": scenario.name != "maintenance",
            }
            result = self._child("bench_s3_query", spec=spec, work=work, timeout_s=1500)
        shutil.rmtree(work)
        self._say(f"{scenario.name} {repetition + 1} {contender.name} by s3a", begin)
        return result

    def _restores(self) -> dict[str, Any]:
        given = self.given
        partitions, megabytes = (
            (4, 20) if given.quick else (given.restore_partitions, given.restore_mb)
        )
        sizes = {"partitions": partitions, "megabytes": megabytes, "tasks": given.tasks}
        found: dict[str, Any] = {**sizes, "links": {}}
        for link in given.links:
            found["links"][f"{link:g}"] = self._restore(sizes, link)
        return found

    def _restore(self, sizes: dict[str, int], link: float) -> dict[str, Any]:
        # This is probably a file system in memory: nothing may stay behind.
        with tempfile.TemporaryDirectory(
            prefix="millpond-bench-s3-", dir=self.given.restore_dir
        ) as local:
            return self._restore_into(Path(local), sizes, link)

    def _restore_into(self, local: Path, sizes: dict[str, int], link: float) -> dict[str, Any]:
        begin = time.monotonic()
        work = self.work_dir / f"restore-{link:g}"
        checkpoint = work / "checkpoint"
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id":"the-query"}')
        with pond(work / "pond", self.given.latency_ms, link) as endpoint:
            spec: dict[str, Any] = {
                **sizes,
                "local": str(local / "stores"),
                "checkpoint": str(checkpoint),
                "endpoint": endpoint,
                "options": {
                    "storage.uri": f"s3://{_BUCKET}/states",
                    "storage.s3.endpoint": endpoint,
                },
                "hadoop": _KEYS,
            }
            spec |= self._child("bench_s3_restore", "store", spec=spec, work=work, timeout_s=900)
            with urllib.request.urlopen(f"{endpoint}/-/log") as answer:
                spec["objects"] = [
                    (f"{_BUCKET}/{key}", sizes["megabytes"] * 1_000_000)
                    for _, operation, key, _ in json.load(answer)
                    if key.endswith(".sst") and operation in ("COMPLETE", "PUT")
                ]
            rounds: dict[str, list[dict[str, Any]]] = {"raw": [], "files": [], "restore": []}
            for _ in range(self.repetitions):
                for what, runs in rounds.items():
                    runs.append(
                        self._child("bench_s3_restore", what, spec=spec, work=work, timeout_s=900)
                    )
                    shutil.rmtree(local / "stores", ignore_errors=True)
        shutil.rmtree(work)
        self._say(f"restore, link {f'{link:g} MB/s' if link else 'without limit'}", begin)
        rates = {what: median(run["mb_per_s"] for run in runs) for what, runs in rounds.items()}
        shares = {f"share_of_{what}": rates["restore"] / rates[what] for what in ("raw", "files")}
        return {**rounds, "mb_per_s": rates, **shares}


def _write_docs(results: dict[str, Any], source: Path) -> None:
    host, versions = results["host"], results["versions"]
    named = source.resolve()
    raw = named.relative_to(REPOSITORY) if named.is_relative_to(REPOSITORY) else named
    commit = f"commit `{results['commit'][:12]}`{' with changes' if results['dirty'] else ''}"
    where = (
        f"Measured {results['time_utc']} on {host['cores']} cores of {host['cpu']},"
        f" {host['memory_bytes'] / 2**30:.0f} GiB; Spark {versions['spark']}, Python"
        f" {versions['python']}; {commit}. {results['latency_ms']:g} ms added to each request,"
        f" {results['slots']} task slots. Raw figures: [`{raw}`](../{raw})."
    )
    if results.get("s3a"):
        load = results["host"]["load_average_1m"], results["load_average_at_end"]
        pairs = results["repetitions"]
        where += (
            f" {pairs} run{'s' if pairs > 1 else ''} of each contender, in turn. The load average"
            f" was {load[0]:.1f} before and {load[1]:.1f} after: other work shared the machine if"
            f" it is above {host['cores']}."
        )
    begin, end = (_BEGIN_S3A, _END_S3A) if results.get("s3a") else (_BEGIN, _END)
    where = textwrap.fill(where, 100, break_long_words=False, break_on_hyphens=False)
    bench_env.replace_generated(
        _DOCS, begin, end, f"{where}\n\n{bench_s3_report.markdown(results)}"
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--latency-ms", type=float, default=20, help="added to each request (default 20)"
    )
    parser.add_argument(
        "--slots", type=int, default=4, help="tasks that run at a time in the queries (default 4)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=1, help="processes of each measure (default 1)"
    )
    parser.add_argument(
        "--s3a",
        action="store_true",
        help="only the queries, on MinIO, Spark's files by Hadoop's s3a",
    )
    parser.add_argument("--only", choices=("query", "restore"), help="one of the two parts")
    parser.add_argument(
        "--restore-partitions", type=int, default=64, help="stores to restore (default 64)"
    )
    parser.add_argument("--restore-mb", type=int, default=50, help="megabytes of each (default 50)")
    parser.add_argument(
        "--restore-dir",
        type=Path,
        default=next((path for path in (Path("/dev/shm"),) if path.is_dir()), None),
        help=(
            "where stores are restored to (default: /dev/shm, so that the disk is not what is"
            " measured)"
        ),
    )
    parser.add_argument(
        "--tasks", type=int, default=8, help="stores that are restored at a time (default 8)"
    )
    parser.add_argument(
        "--links",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[625.0, 0.0],
        help=(
            "MB/s of the link to the server, comma-separated; 0: what loopback gives (default"
            " 625,0)"
        ),
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        help="parent of everything local (default: the system's temporary one)",
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/s3-<time>-<commit>.json)"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test; its figures mean nothing")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ alone")
    parser.add_argument(
        "--render", type=Path, metavar="JSON", help="run nothing: write the docs from a result file"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 2 if something cannot run."""
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        if given.render:
            _write_docs(json.loads(given.render.read_text()), given.render)
            return 0
        if given.s3a:
            _need_s3a()
        work_dir = Path(tempfile.mkdtemp(prefix="millpond-bench-s3-", dir=given.work_dir))
        try:
            results = _Run(given, work_dir).results()
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)
        out = bench_env.write_results(results, given.out, prefix="s3-", indent=1)
        print(bench_s3_report.markdown(results))
        print(f"\nresults: {out} ({results['seconds']} s in all)")
        if not (given.quick or given.only or given.no_docs):
            _write_docs(results, out)
            print(f"docs: {_DOCS.relative_to(REPOSITORY)}")
    except BenchError as error:
        print(f"bench-s3: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
