#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures latency in Spark's real-time mode: `make bench-latency`, or `--help`.

A cell of the grid is a source, a query, a rate and a number of keys. Each contender runs it in a
process of its own, one after the other. Results: JSON below `benchmarks/results/`, a table on
stdout, and with `--docs` docs/benchmarks-latency.md with its charts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env, bench_latency_flink, bench_latency_report
from benchmarks.bench_contenders import (
    BASELINE,
    CONTENDERS,
    FLINK,
    OURS,
    STATELESS,
    in_turn,
)
from benchmarks.bench_env import REPOSITORY, BenchError, report_cells
from benchmarks.bench_latency_query import BUFFER_MS, PACKAGE, plan_text
from benchmarks.bench_process import run_spec
from benchmarks.bench_query import session_conf

_ALL = (OURS, BASELINE, STATELESS, FLINK)
_STATE = "spark.sql.streaming.stateStore."
_HEAP_MIB = 2048
_CLASSES = REPOSITORY / "build" / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is measured at once.

    Attributes:
        source: `memory` or `kafka`.
        query: one of `bench_latency_query.QUERIES`.
        rate: records a second.
        keys: that the state has before anything counts.
        warmup_s, seconds: of the schedule; the first ones do not count.
        trigger_s: how long a batch takes. Flink: between two checkpoints.
    """

    source: str
    query: str
    rate: int
    keys: int
    warmup_s: int
    seconds: int
    trigger_s: int

    @property
    def name(self) -> str:
        """Return the word for `--cells`."""
        return f"{self.source}-{self.query}-{self.rate}-{self.keys}"


FULL = tuple(
    "-".join(parts)
    for parts in itertools.product(
        ("memory", "kafka"), ("count", "dedup", "sessions"), ("1000", "10000"), ("1000", "1000000")
    )
)
SHORT = (
    "memory-count-1000-1000",
    "memory-count-10000-1000000",
    "memory-dedup-10000-1000000",
    "memory-sessions-10000-1000000",
    "kafka-count-1000-1000",
    "kafka-count-10000-1000000",
)


def cell(name: str, *, seconds: int, trigger_s: int, warmup_s: int | None = None) -> Cell:
    """Return the cell of a name; without `warmup_s` a batch's time does not count.

    Raises: ValueError: there is none.
    """
    if name not in FULL:
        raise ValueError(f"unknown cell {name}; there are {', '.join(FULL)}")
    source, query, rate, keys = name.split("-")
    return Cell(
        source=source,
        query=query,
        rate=int(rate),
        keys=int(keys),
        warmup_s=trigger_s if warmup_s is None else warmup_s,
        seconds=seconds,
        trigger_s=trigger_s,
    )


def _conf(contender: str, work: Path, jars: Sequence[Path], trigger_s: int) -> dict[str, str]:
    """Return the settings of a session that runs real-time mode."""
    extra = {
        "spark.master": "local[8]",  # all stages run at the same time
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.realTimeMode.minBatchDuration": str(trigger_s * 1000),
        _STATE + "checkpointFormatVersion": "2",
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": str(BUFFER_MS),
        "spark.driver.extraJavaOptions": f"-Xms{_HEAP_MIB}m",
    }
    if contender == OURS:
        extra[_STATE + "millpond.realTime"] = "true"
    jar = bench_env.millpond_jar(None) if contender == OURS else None
    chosen = CONTENDERS[BASELINE if contender == STATELESS else contender]
    conf = session_conf(chosen, extra, work_dir=work, heap_mib=_HEAP_MIB, jar=jar)
    path = [*map(str, jars), conf.get("spark.driver.extraClassPath", "")]
    return conf | {"spark.driver.extraClassPath": os.pathsep.join(filter(None, path))}


def measure(what: Cell, contender: str, work: Path, classes: Path) -> dict[str, Any]:
    """Return the figures of one process. Raises: BenchError: it failed."""
    wanted_s = what.warmup_s + what.seconds + 20 * what.trigger_s + 300
    jars, sender = [classes], list[Path]()
    broker: AbstractContextManager[Any] = nullcontext()
    if what.source == "kafka":
        from integration.peers.kafka import broker as brokers
        from integration.peers.kafka import jars as kafka

        if not _kafka_fetched():
            raise BenchError(
                "no jars of Kafka: `.venv/bin/python -m integration.peers.kafka` fetches them"
            )
        jars += kafka.connector()
        sources = [REPOSITORY / "benchmarks" / "scala-kafka" / "KafkaLoad.scala"]
        own = bench_env.compile_beside(_CLASSES, "kafka", sources, [classes, *kafka.connector()])
        sender = [own, *jars, bench_env.spark_jars() / "*"]
        (work / "broker").mkdir()
        broker = brokers.broker(work / "broker")
    with broker as started:
        servers = started.servers if started else None
        load = _load(what, sender, servers) if servers else []
        if contender == FLINK:
            return bench_latency_flink.measure(
                asdict(what), work, _CLASSES, servers=servers, load=load, timeout_s=wanted_s
            )
        return run_spec(
            [sys.executable, "-m", "benchmarks.bench_latency_query"],
            {
                "cell": asdict(what),
                "stateless": contender == STATELESS,
                "conf": _conf(contender, work, jars, what.trigger_s),
                "checkpoint": (work / "checkpoint").as_uri(),
                "servers": servers,
                "load": load,
            },
            work_dir=work,
            timeout_s=wanted_s,
        )


def _load(what: Cell, path: Sequence[Path], servers: str) -> list[str]:
    """Return the command of the process that sends records to Kafka, and takes results' times."""
    options = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC"]
    main_class = f"{PACKAGE}.KafkaLoad"
    command = [bench_env.java(), *options, "-cp", os.pathsep.join(map(str, path)), main_class]
    return [*command, plan_text(asdict(what)), servers]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    grid = parser.add_mutually_exclusive_group()
    grid.add_argument("--cells", help="some cells of the grid, with commas (default: all)")
    grid.add_argument("--short", action="store_true", help="six telling cells")
    grid.add_argument("--quick", action="store_true", help="one cell for ten seconds: a smoke run")
    parser.add_argument("--seconds", type=int, default=600, help="of each cell (600)")
    parser.add_argument("--trigger", type=int, default=30, help="seconds of a batch (30)")
    parser.add_argument(
        "--warmup", type=int, help="seconds that do not count (default: those of a batch)"
    )
    parser.add_argument(
        "--contenders", default=f"{OURS},{BASELINE}", help=f"also {STATELESS}, {FLINK}"
    )
    parser.add_argument("--out", type=Path, help="results; a file that is there gets more cells")
    parser.add_argument("--docs", action="store_true", help="write the page and its charts")
    parser.add_argument("--render", type=Path, help="write the page from results, measure nothing")
    parser.add_argument("--work-dir", help="for Spark checkpoints (default: TMPDIR)")
    return parser.parse_args(arguments)


def _cells(given: argparse.Namespace) -> list[Cell]:
    if given.quick:
        return [cell("memory-count-1000-1000", seconds=10, trigger_s=5)]
    if given.cells:
        names = tuple(given.cells.split(","))
    else:
        names = SHORT if given.short else FULL
        if not _kafka_fetched():
            print("without the cells of Kafka, whose jars are not there", file=sys.stderr)
            names = tuple(n for n in names if not n.startswith("kafka"))
    return [
        cell(n, seconds=given.seconds, trigger_s=given.trigger, warmup_s=given.warmup)
        for n in names
    ]


def _kafka_fetched() -> bool:
    # Only here: the benchmark of the memory source needs nothing of the peers.
    from integration.peers.kafka import jars

    return jars.fetched()


def _begun(out: Path | None, host: dict[str, Any]) -> dict[str, Any]:
    """Return results to add to."""
    if out is None or not out.exists():
        return host | {"cells": {}}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _kept(results: dict[str, Any], what: Cell, host: Mapping[str, Any], out: Path) -> Any:
    """Return a cell's results to add to, empty if those that are there are of another commit or
    machine.

    Raises: BenchError: it was measured with other times.
    """
    new = {"cell": asdict(what), "contenders": {}}
    new |= {name: host[name] for name in bench_latency_report.RUN}
    kept = results["cells"].get(what.name, new)
    kept |= bench_latency_report.run_of(results, kept)
    if kept["cell"] != new["cell"]:
        raise BenchError(f"{out} has {what.name} with other times: name another file by --out")
    if (kept["commit"], kept["host"]["cpu"]) != (new["commit"], new["host"]["cpu"]):
        kept = new
    kept["dirty"] = kept["dirty"] or new["dirty"]
    results["cells"][what.name] = kept
    return kept


def _run(given: argparse.Namespace, work: Path) -> tuple[dict[str, Any], Path]:
    """Measure the cells, and keep each as soon as it is there."""
    cells, contenders = _cells(given), given.contenders.split(",")
    unknown = sorted(set(contenders) - set(_ALL))
    if unknown:
        raise ValueError(f"unknown contenders {unknown}; there are {', '.join(_ALL)}")
    host = bench_env.describe_host(work)
    results = _begun(given.out, host | {"quick": given.quick})
    out = given.out or bench_env.results_path(results, prefix="latency-")
    out.parent.mkdir(parents=True, exist_ok=True)
    classes = bench_env.compile_store_bench(_CLASSES)
    for i, what in enumerate(cells):
        kept = _kept(results, what, host, out)
        for name in in_turn(contenders, i):
            if name == STATELESS and what.query == "dedup":
                continue  # without state nothing is a duplicate
            place = work / f"{what.name}-{name}"
            place.mkdir()
            print(f"{what.name}: {name}", file=sys.stderr, flush=True)
            kept["contenders"][name] = measure(what, name, place, classes)
            shutil.rmtree(place)
            out.write_text(json.dumps(results) + "\n")
    return results, out


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 if something could not be measured."""
    return report_cells(
        "bench-latency",
        _arguments(arguments),
        _run,
        lambda results: bench_latency_report.tables(results, goals=True),
        bench_latency_report.write,
    )


if __name__ == "__main__":
    sys.exit(main())
