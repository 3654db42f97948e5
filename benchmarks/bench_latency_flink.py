# SPDX-License-Identifier: Apache-2.0
"""Flink beside the contenders of `bench_latency`: the process of one cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_flink
from benchmarks.bench_env import REPOSITORY
from benchmarks.bench_latency_measures import derive
from benchmarks.bench_latency_query import BUFFER_MS, plan_text
from benchmarks.bench_process import run_measured

_HEAP_MIB = 2048


def measure(
    cell: dict[str, Any],
    work: Path,
    cache: Path,
    *,
    servers: str | None,
    load: Sequence[str],
    timeout_s: float,
) -> dict[str, Any]:
    """Return the figures of one process. Raises: BenchError: it failed, or there are no jars.

    Args:
        servers: of Kafka. None: records come from memory.
        load: the command of the process that sends records to Kafka.
    """
    names = [bench_flink.SOURCES / "FlinkLatency.scala", bench_flink.SOURCES / "FlinkKafka.scala"]
    sources = [*names, REPOSITORY / "benchmarks" / "scala" / "Latencies.scala"]
    jars = [*bench_flink.jars(), *bench_flink.kafka_jars()]
    heap = [f"-Xms{_HEAP_MIB}m", f"-Xmx{_HEAP_MIB}m"]
    command = bench_flink.command("FlinkLatency", cache, sources, jars, heap)
    result = work / "result.json"
    command += [plan_text(cell), cell["query"]]
    command += [str(cell["trigger_s"] * 1000), str(BUFFER_MS), str(work), str(result)]
    if servers is not None:
        command += [servers, *load]
    run_measured(command, log=work / "log", timeout_s=timeout_s)
    return derive(json.loads(result.read_text()), [], cell["trigger_s"] * 1000)
