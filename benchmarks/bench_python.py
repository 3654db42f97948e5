# SPDX-License-Identifier: Apache-2.0
"""Level of Python's state: whole batches of `transformWithState`, transport and store together.

One process measures one contender: all scenarios in one session, one after the other. Then the same
logic by Scala's API, for Millpond. `run.py --only python` runs this level alone:
`python -m benchmarks.bench_python <spec.json> <result.json>` is its process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_contenders import BASELINE, MILLPOND_PROVIDER, OURS, Contender
from benchmarks.bench_process import run_spec
from benchmarks.bench_query import batch, open_session, progress_of, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENDERS = (OURS, BASELINE)
HEAP_MIB = 2048
_PARTITIONS = 2
_TRANSPORT = "spark.sql.streaming.stateStore.millpond.python.transport"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One query over `rows` keys, each with a row in every batch.

    Attributes:
        query: its processor, and its stream (`bench_python_queries.build`).
        api: `python`, `pandas`, `apply` (`applyInPandasWithState`), `scala`, `sql` or `stateless`.
        warmup: batches that do not count.
        measured: the batches after them.
    """

    name: str
    query: str
    api: str = "python"
    rows: int = 30_000
    warmup: int = 2
    measured: int = 3


# A single batch varies by a sixth. Where one takes Spark ten seconds and more, one has to do.
SCENARIOS = (
    Scenario(name="rows", query="value", warmup=1),
    Scenario(name="pandas", query="value", api="pandas", warmup=1, measured=1),
    Scenario(name="map", query="map", warmup=1),
    Scenario(name="list", query="list", warmup=1),
    Scenario(name="timers", query="timers"),
    Scenario(name="small", query="value", rows=100, warmup=5, measured=10),
    Scenario(name="small_count", query="value", api="sql", rows=100, warmup=5, measured=10),
    Scenario(
        name="small_stateless", query="value", api="stateless", rows=100, warmup=5, measured=10
    ),
    Scenario(name="rows_many", query="value", rows=300_000, warmup=1, measured=1),
    # Spark's pool gives it other workers, and keeps those of the query before for up to a minute:
    # behind it, each memory would be that of two queries.
    Scenario(name="apply", query="value", api="apply", warmup=1, measured=1),
)
_SCALA = tuple(
    Scenario(name=f"scala_{query}", query=query, api="scala")
    for query in ("value", "map", "list", "timers")
)


def scenarios(contender: str, *, scale: float, quick: bool) -> list[Scenario]:
    """Return what a contender runs. The scale multiplies the keys, except in the latency cases."""
    asked = [*SCENARIOS, *(_SCALA if contender == OURS else ())]
    if quick:
        return [replace(s, rows=min(s.rows, 200), warmup=1, measured=1) for s in asked]
    return [s if s.rows <= 100 else replace(s, rows=int(s.rows * scale)) for s in asked]


def measure(
    contender: Contender,
    asked: list[Scenario],
    *,
    jar: Path | None,
    classes: Path,
    work_dir: Path,
    extra_conf: dict[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    """Return batches and memory of each scenario, by its name, of one process.

    Raises: BenchError: the process failed.
    """
    work_dir.mkdir(parents=True)
    conf = session_conf(contender, extra_conf, work_dir=work_dir, heap_mib=HEAP_MIB, jar=jar)
    path = conf.get("spark.driver.extraClassPath", "")
    conf["spark.driver.extraClassPath"] = os.pathsep.join(filter(None, [str(classes), path]))
    # The whole heap is resident from the start: what grows lies outside of it.
    conf["spark.driver.extraJavaOptions"] = f"-Xms{HEAP_MIB}m -XX:+AlwaysPreTouch"
    if contender.conf.get("spark.sql.streaming.stateStore.providerClass") == MILLPOND_PROVIDER:
        conf.setdefault(_TRANSPORT, "bulk")
    measured = run_spec(
        [sys.executable, "-m", "benchmarks.bench_python"],
        {
            "conf": conf,
            "scenarios": [asdict(scenario) for scenario in asked],
            "checkpoints": str(work_dir / "checkpoints"),
        },
        work_dir=work_dir,
        timeout_s=timeout_s,
    )
    shutil.rmtree(work_dir)
    return measured


class _Memory:
    """The largest memory of the JVM and of its Python workers while a query runs."""

    def __init__(self, jvm: int) -> None:
        self.jvm = jvm
        self.jvm_bytes = self.workers_bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look once a second until the end of the block; a look takes some ms."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(1):
                self.jvm_bytes = max(self.jvm_bytes, _resident_bytes(self.jvm))
                workers = sum(map(_resident_bytes, _workers(self.jvm)))
                self.workers_bytes = max(self.workers_bytes, workers)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _resident_bytes(pid: int) -> int:
    """Return a process's share of resident memory; what forks share counts once. 0: it ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _workers(jvm: int) -> list[int]:
    """Return Spark's Python daemon below the JVM, and its workers: all but Millpond's agent."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"millpond.agent" not in command:
                parents[int(entry.name)] = int(stat[1])
    found = [jvm]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _run(
    spark: SparkSession, scenario: Scenario, checkpoint: str, deadline_s: float
) -> list[dict[str, Any]]:
    from benchmarks.bench_python_queries import build

    frame = build(spark, scenario.query, scenario.api, scenario.rows)
    query = (
        frame.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        wanted = scenario.warmup + scenario.measured
        found = progress_of(query, wanted, scenario.name, seconds=deadline_s)
        return [batch(p) for p in found]
    finally:
        query.stop()


def main(spec_path: str, result_path: str) -> None:
    """Run the scenarios of a spec in a session of its own, and write their batches."""
    spec = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-python-bench", spec["conf"])
    spark.conf.set("spark.sql.shuffle.partitions", _PARTITIONS)
    gateway: Any = spark.sparkContext._gateway
    result = {}
    for scenario in (Scenario(**given) for given in spec["scenarios"]):
        memory = _Memory(gateway.proc.pid)
        begin = time.monotonic()
        with memory.watched():
            batches = _run(spark, scenario, f"{spec['checkpoints']}/{scenario.name}", 900.0)
        result[scenario.name] = {
            "warmup": scenario.warmup,
            "batches": batches,
            "jvm_bytes": memory.jvm_bytes,
            "workers_bytes": memory.workers_bytes,
            "seconds": round(time.monotonic() - begin, 1),
        }
    Path(result_path).write_text(json.dumps(result))
    os._exit(0)  # as in `bench_query`: the end of Spark's store may wait for a minute


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
