#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `millpond serve` beside a running query: `make bench-serve`, or `--help`.

A query runs all the time. Phases without and with a server take turns; with it, a client looks up
random keys at a steady rate. The median batch of both tells how much slower the query gets. Then
the client asks as fast as it can. Results: JSON below `benchmarks/results/`, a table on stdout, and
after a full run docs/benchmarks-serve.md.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_contenders import CONTENDERS
from benchmarks.bench_env import REPOSITORY, BenchError
from benchmarks.bench_query import open_session

_PAGE = REPOSITORY / "docs" / "benchmarks-serve.md"
_BEGIN = "<!-- results: written by benchmarks/bench_serve.py, do not edit -->"
_END = "<!-- end of results -->"
_WARMUP_S = 240
_CLIENTS = 4  # connections of the client
_TOKEN = "a-token-of-the-benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Args:
        keys: of the state.
        rows: of a batch; each updates another key.
        trigger: how often a batch begins.
        rate: look-ups a second in the phases with a server.
        per_request: keys of a request.
        rounds: how often the two phases take turns.
        seconds: of each phase.
    """

    keys: int = 1_000_000
    rows: int = 50_000
    partitions: int = 4
    trigger: str = "1 second"
    rate: int = 2000
    per_request: int = 10
    rounds: int = 4
    seconds: int = 20


# ---- the query, in a process of its own


def run_query(spec_path: str) -> None:
    """Run the query until somebody kills the process. Writes a line for each batch."""
    spec = json.loads(Path(spec_path).read_text())
    plan = Plan(**spec["plan"])
    conf = CONTENDERS["millpond"].conf | spec["conf"]
    spark = open_session("millpond-serve-bench", conf)
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", plan.partitions)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", plan.rows)
    source = source.option("startTimestamp", 1_000_000).option("numPartitions", 2)
    numbers = source.load().select((f.col("value") % plan.keys).alias("key"))
    counts = numbers.groupBy("key").count()
    query = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", spec["checkpoint"])
        .trigger(processingTime=plan.trigger)
        .start()
    )
    seen = -1
    with open(spec["batches"], "a", encoding="utf-8") as out:
        while query.isActive:
            for progress in (json.loads(p.json) for p in query.recentProgress):
                if progress["batchId"] > seen:
                    seen = progress["batchId"]
                    told = {
                        "batch": seen,
                        "ms": progress["durationMs"]["triggerExecution"],
                        "seen_s": time.time(),
                    }
                    out.write(json.dumps(told) + "\n")
            out.flush()
            time.sleep(0.5)  # each look serialises all progress
    raise BenchError(f"the query ended: {query.exception()}")


@contextlib.contextmanager
def querying(plan: Plan, work: Path, cores: str) -> Iterator[Path]:
    """Run the query beside the block. Yields the file of its batches once it has all keys."""
    batches = work / "batches"
    spec = {
        "plan": asdict(plan),
        "checkpoint": str(work / "checkpoint"),
        "batches": str(batches),
        "conf": {
            "spark.driver.memory": "2g",
            "spark.driver.extraClassPath": str(bench_env.millpond_jar(None)),
            "spark.local.dir": str(work / "local"),
            "spark.sql.streaming.numRecentProgressUpdates": "5",
        },
    }
    (work / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, str(Path(__file__)), "--query", str(work / "spec.json")]
    with (work / "query.log").open("wb") as log:
        process = subprocess.Popen(
            [*pinned(cores), *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        try:
            _wait_for(batches, plan.keys // plan.rows + 10, process)
            yield batches
            _check_alive(process, work)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pinned(cores: str) -> list[str]:
    """Return the words before a command that keep it on some processors; "": none."""
    return ["taskset", "-c", cores] if cores else []


def batches_of(path: Path) -> list[dict[str, Any]]:
    """Return what the query wrote about its batches so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _wait_for(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _WARMUP_S
    while len(batches_of(path)) < count:
        _check_alive(process, path.parent)
        if time.monotonic() > end:
            raise BenchError(f"the query made no {count} batches in {_WARMUP_S} s")
        time.sleep(0.2)


def _check_alive(process: subprocess.Popen[bytes], work: Path) -> None:
    if process.poll() is not None:
        tail = (work / "query.log").read_text(errors="replace")[-2000:]
        raise BenchError(f"the query ended early:\n{tail}")


# ---- the server and its client


@contextlib.contextmanager
def serving(work: Path, cores: str) -> Iterator[tuple[str, int]]:
    """Run the server beside the block. Yields host and port."""
    (work / "token").write_text(_TOKEN)
    command = [sys.executable, "-m", "millpond.cli.main", "serve", str(work / "checkpoint")]
    command += ["--port", "0", "--token-file", str(work / "token")]
    with subprocess.Popen([*pinned(cores), *command], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = [server.stdout.readline() for _ in range(3)]
            host, _, port = lines[1].split()[1].removeprefix("http://").partition(":")
            yield host, int(port)
        finally:
            server.send_signal(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when it ended, how long it took, what it found."""

    end_s: float
    ms: float
    batch: int
    rows: int


def run_client(plan: Plan, host: str, port: int, seconds: float, rate: int | None) -> list[Asked]:
    """Look up random keys over several connections.

    Args:
        rate: look-ups a second, evenly spaced; a late answer does not put off the next request on
            the clock. None: each connection asks as soon as it has its answer.
    """
    results: list[list[Asked]] = [[] for _ in range(_CLIENTS)]
    gap_s = 0.0 if rate is None else plan.per_request * _CLIENTS / rate
    begin = time.monotonic() + 0.1

    def ask(number: int) -> None:
        chance = random.Random(number)
        connection = http.client.HTTPConnection(host, port)
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
        planned = begin + gap_s * number / _CLIENTS
        while planned < begin + seconds:
            time.sleep(max(0.0, planned - time.monotonic()))
            keys = [{"key": chance.randrange(plan.keys)} for _ in range(plan.per_request)]
            start = planned if rate is not None else time.monotonic()
            connection.request("POST", "/v1/lookup", json.dumps({"keys": keys}), headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
            if answer.status != 200:
                raise BenchError(f"the server answers {answer.status}: {told}")
            now = time.monotonic()
            results[number].append(
                Asked(time.time(), (now - start) * 1000, told["batch"], len(told["rows"]))
            )
            planned = planned + gap_s if rate is not None else now
        connection.close()

    with ThreadPoolExecutor(_CLIENTS) as pool:
        for waiting in [pool.submit(ask, number) for number in range(_CLIENTS)]:
            waiting.result()
    return sorted((one for found in results for one in found), key=lambda one: one.end_s)


def client_main(spec: str) -> None:
    """Ask as a spec says. Prints what was asked, as JSON."""
    given = json.loads(spec)
    found = run_client(
        Plan(**given["plan"]), given["host"], given["port"], given["seconds"], given["rate"]
    )
    print(json.dumps([asdict(one) for one in found]))


def _asked(
    plan: Plan, place: tuple[str, int], seconds: float, rate: int | None, cores: str
) -> list[Asked]:
    """Run the client in a process of its own: its work is not the server's."""
    spec = {"plan": asdict(plan), "host": place[0], "port": place[1]}
    spec |= {"seconds": seconds, "rate": rate}
    command = [*pinned(cores), sys.executable, str(Path(__file__)), "--client", json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"the client failed:\n{done.stderr[-2000:]}")
    found = [Asked(**one) for one in json.loads(done.stdout)]
    if len(found) < 2:
        raise BenchError(f"the client got {len(found)} answers: measure for longer")
    return found


def latency(asked: list[Asked], per_request: int) -> dict[str, float]:
    """Return look-ups a second, and how long requests took."""
    cuts = quantiles([one.ms for one in asked], n=1000)
    seconds = asked[-1].end_s - asked[0].end_s
    return {
        "lookups_per_s": round((len(asked) - 1) * per_request / seconds, 1),
        "requests": len(asked),
        "found": sum(one.rows for one in asked),
        "p50_ms": round(cuts[499], 2),
        "p99_ms": round(cuts[989], 2),
        "p999_ms": round(cuts[998], 2),
    }


def lags_ms(asked: list[Asked], checkpoint: Path) -> list[float]:
    """Return how long after its commit each batch was first in an answer, in ms."""
    first: dict[int, float] = {}
    for one in asked:
        first.setdefault(one.batch, one.end_s)
    found = []
    for batch in sorted(first)[1:]:  # the first one was there when the client began
        with contextlib.suppress(FileNotFoundError):
            committed_s = (checkpoint / "commits" / str(batch)).stat().st_mtime
            found.append((first[batch] - committed_s) * 1000)
    return found


def of_phase(batches: list[dict[str, Any]], begin_s: float, end_s: float) -> list[int]:
    """Return how long the batches took that began and ended in a phase, in ms."""
    return [
        b["ms"]
        for b in batches
        if begin_s + b["ms"] / 1000 < b["seen_s"] - 0.5 and b["seen_s"] < end_s
    ]


def measure(plan: Plan, work: Path, query_cores: str, server_cores: str) -> dict[str, Any]:
    """Return all figures."""
    alone: list[list[int]] = []
    beside: list[list[int]] = []
    steady: list[Asked] = []
    lags: list[float] = []
    with querying(plan, work, query_cores) as file:
        for _ in range(plan.rounds):
            begin = time.time()
            time.sleep(plan.seconds)
            end = time.time()
            with serving(work, server_cores) as place:
                _asked(plan, place, 2, plan.rate, server_cores)  # opens the stores
                begun = time.time()
                asked = _asked(plan, place, plan.seconds, plan.rate, server_cores)
                ended = time.time()
            lags += lags_ms(asked, work / "checkpoint")
            steady += asked
            batches = batches_of(file)
            alone.append(of_phase(batches, begin, end))
            beside.append(of_phase(batches, begun, ended))
        with serving(work, server_cores) as place:
            _asked(plan, place, 2, plan.rate, server_cores)
            fast = _asked(plan, place, plan.seconds, None, server_cores)
    if not all(alone) or not all(beside) or not lags:
        raise BenchError("a phase saw no batch: measure for longer")
    shares = [median(b) / median(a) for a, b in zip(alone, beside, strict=True)]
    rate = latency(steady, plan.per_request)
    # Between the phases nobody asked.
    rate["lookups_per_s"] = round(len(steady) * plan.per_request / plan.rounds / plan.seconds, 1)
    return {
        "steady": rate,
        "fastest": latency(fast, plan.per_request),
        "lag_ms": {"median": round(median(lags)), "largest": round(max(lags)), "of": len(lags)},
        "batch_ms": {
            "alone": [median(one) for one in alone],
            "beside": [median(one) for one in beside],
            "batches": [sum(map(len, alone)), sum(map(len, beside))],
            "all_alone": median(ms for one in alone for ms in one),
            "all_beside": median(ms for one in beside for ms in one),
        },
        "slower_percent": {
            "of_all_batches": round(
                (
                    median(ms for one in beside for ms in one)
                    / median(ms for one in alone for ms in one)
                    - 1
                )
                * 100,
                1,
            ),
            "of_each_round": [round((share - 1) * 100, 1) for share in shares],
        },
    }


def report(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    host, plan = results["host"], Plan(**results["plan"])
    figures = results["figures"]
    steady, fast = figures["steady"], figures["fastest"]
    rounds = ", ".join(f"{share:+.1f} %" for share in figures["slower_percent"]["of_each_round"])
    batch = figures["batch_ms"]
    dirty = ", with changes" if results["dirty"] else ""
    table = f"""
| | look-ups a second | p50 of a request | p99 | p99.9 |
|---|---|---|---|---|
| at a steady rate | {steady["lookups_per_s"]:,.0f} | {steady["p50_ms"]:.1f} ms \
| {steady["p99_ms"]:.1f} ms | {steady["p999_ms"]:.1f} ms |
| as fast as {_CLIENTS} connections can | {fast["lookups_per_s"]:,.0f} | {fast["p50_ms"]:.1f} ms \
| {fast["p99_ms"]:.1f} ms | {fast["p999_ms"]:.1f} ms |
"""
    lag = figures["lag_ms"]
    lines = [
        f"- A commit is in the answers after {lag['median']} ms (median of {lag['of']} commits; the"
        f" slowest: {lag['largest']} ms).",
        f"- A batch of the query: {batch['all_alone']:,.0f} ms alone, {batch['all_beside']:,.0f} ms"
        f" beside the server at the steady rate: {figures['slower_percent']['of_all_batches']:+.1f}"
        f" % (medians of {batch['batches'][0]} and {batch['batches'][1]} batches). By round:"
        f" {rounds}.",
    ]
    conditions = (
        f"Under these conditions: {plan.keys:,} keys in {plan.partitions} partitions,"
        f" {plan.rows:,} rows a batch, a batch each {plan.trigger}; {plan.per_request} random keys"
        f" a request over {_CLIENTS} connections, JSON; {plan.rounds} rounds of {plan.seconds} s"
        f" without and {plan.seconds} s with a server. Query on {_cores(results['query_cores'])},"
        f" server and client together on {_cores(results['server_cores'])}, of {host['cores']}"
        f" ({host['cpu']}); {host['file_system']}; load average at the"
        f" start {host['load_average_1m']}. Spark {results['versions']['spark']}, Python"
        f" {results['versions']['python']}, commit `{results['commit'][:8]}`{dirty},"
        f" {results['time_utc']}."
    )
    told = [textwrap.fill(line, 100, subsequent_indent="  ") for line in lines]
    return "\n".join([table, *told, "", textwrap.fill(conditions, 100)]) + "\n"


def _cores(given: str) -> str:
    return f"processor {given}" if given else "any processor"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; figures mean nothing")
    parser.add_argument("--rounds", type=int, default=4, help="default: 4")
    parser.add_argument("--seconds", type=int, default=20, help="of each phase (default: 20)")
    parser.add_argument(
        "--query-cores", default="", help="for taskset -c: where the query runs (default: any)"
    )
    parser.add_argument(
        "--server-cores", default="", help="where the server and its client run (default: any)"
    )
    parser.add_argument("--query", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.query:
        run_query(given.query)
        return 0
    if given.client:
        client_main(given.client)
        return 0
    plan = Plan(rounds=given.rounds, seconds=given.seconds)
    if given.quick:
        plan = Plan(keys=2000, rows=1000, partitions=2, rounds=1, seconds=6)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-serve-") as directory:
            work = Path(directory)
            results = bench_env.describe_host(work) | {
                "plan": asdict(plan),
                "quick": given.quick,
                "query_cores": given.query_cores,
                "server_cores": given.server_cores,
            }
            results["figures"] = measure(plan, work, given.query_cores, given.server_cores)
    except BenchError as e:
        print(f"bench-serve: {e}", file=sys.stderr)
        return 1
    path = bench_env.results_path(results, prefix="serve-")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(report(results))
    print(f"results: {path}")
    if not given.quick:
        bench_env.replace_generated(_PAGE, _BEGIN, _END, report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
