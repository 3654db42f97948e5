#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Splits the time of a small micro-batch: `make bench-small`, or `--help`.

A count of 100 rows in two partitions, with each store in a process of its own, one after the other.
Beside them the same rows through the same shuffle without state, and with a store that keeps
nothing: what these take is Spark's own time. All figures come from Spark: the query's progress, and
the event log. Results: JSON below `benchmarks/results/`, and a table on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_contenders import CONTENDERS, OURS, STATELESS
from benchmarks.bench_env import REPOSITORY, run_program
from benchmarks.bench_process import run_spec
from benchmarks.bench_query import open_session, progress_of, session_conf
from benchmarks.bench_report import table
from millpond.config import PREFIX

_HEAP_MIB = 2048
_PARTITIONS = 2
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
NOTHING = "nothing"
HADOOPS_LOGS = "millpond-hadoops-logs"
LABELS = {
    STATELESS: "no state",
    NOTHING: "a store that keeps nothing",
    OURS: CONTENDERS[OURS].label,
    HADOOPS_LOGS: f"{CONTENDERS[OURS].label}, `logs.direct=false`",
} | {name: CONTENDERS[name].label for name in ("rocksdb-changelog", "rocksdb-snapshot", "hdfs")}
# What a batch does, in its order. Each is the median of all batches, in ms.
STEPS = {
    "trigger": "the whole batch",
    "offsets_log": "log of offsets",
    "planning": "source, planning",
    "plan": "plan of the batch",
    "before_job": "from the plan to the job",
    "source_stage": "stage of the source",
    "state_stage": "stage of the state",
    "task": "of it the longer task",
    "store_update": "of it the store's reads and writes",
    "store_commit": "of it the store's commit",
    "after_job": "after the job",
    "commits_log": "log of commits",
    "rest": "the rest",
}


def _conf(contender: str, work: Path, classes: Path) -> dict[str, str]:
    """Return the settings of a session. Spark writes its events to `work/events`."""
    ours = contender in (OURS, HADOOPS_LOGS)
    chosen = CONTENDERS.get(OURS if ours else contender, CONTENDERS["hdfs"])
    jar = bench_env.millpond_jar(None) if ours else None
    conf = session_conf(chosen, {}, work_dir=work, heap_mib=_HEAP_MIB, jar=jar)
    if contender == NOTHING:
        conf[_PROVIDER] = "org.apache.spark.sql.millpond.bench.NothingProvider"
    elif contender == HADOOPS_LOGS:
        conf[f"{PREFIX}logs.direct"] = "false"
    path = [str(classes), conf.get("spark.driver.extraClassPath", "")]
    return conf | {
        "spark.driver.extraClassPath": os.pathsep.join(filter(None, path)),
        "spark.driver.extraJavaOptions": f"-Xms{_HEAP_MIB}m",
        "spark.sql.shuffle.partitions": str(_PARTITIONS),
        "spark.sql.adaptive.enabled": "false",  # as Spark has it for queries with state
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (work / "events").as_uri(),
    }


def measure(
    contender: str, work: Path, classes: Path, *, rows: int, warmup: int, batches: int
) -> dict[str, Any]:
    """Return the steps of each batch of one process. Raises: BenchError: it failed."""
    (work / "events").mkdir(parents=True)
    return run_spec(
        [sys.executable, "-m", "benchmarks.bench_small"],
        {
            "conf": _conf(contender, work, classes),
            "stateless": contender == STATELESS,
            "rows": rows,
            "warmup": warmup,
            "batches": batches,
            "checkpoint": str(work / "checkpoint"),
            "events": str(work / "events"),
        },
        work_dir=work,
        timeout_s=120 + 2 * (warmup + batches),
    )


def process(spec_path: str, result_path: str) -> None:
    """Run the query of a spec in a session of its own, and write the steps of its batches."""
    from benchmarks.bench_python_queries import keys

    spec = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-small-bench", spec["conf"])
    wanted = spec["warmup"] + spec["batches"]
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", wanted + 50)
    rows = keys(spark, spec["rows"])
    frame = (
        rows.repartition(_PARTITIONS, "key") if spec["stateless"] else rows.groupBy("key").count()
    )
    writer = frame.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", spec["checkpoint"]).start()
    progress = progress_of(query, wanted, "small", seconds=100 + 2 * wanted, pause_s=1)
    found = progress[spec["warmup"] :]
    query.stop()
    spark.stop()  # completes the event log
    (log,) = (p for p in Path(spec["events"]).iterdir() if not p.name.startswith("."))
    result = {"batches": split(found, [json.loads(line) for line in log.open()])}
    Path(result_path).write_text(json.dumps(result))
    os._exit(0)  # as in `bench_query`: the end of Spark's store may wait for a minute


def split(
    progress: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[dict[str, float]]:
    """Return what each batch's steps took in ms, by the names of `STEPS`.

    Args:
        progress: of the batches, as Spark reports them.
        events: of Spark's event log, in its order.
    """
    jobs: dict[int, Mapping[str, Any]] = {}
    executions: dict[int, list[int]] = defaultdict(list)  # begin and end
    stages: dict[int, Mapping[str, Any]] = {}
    tasks: dict[int, list[int]] = defaultdict(list)
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            batch = event["Properties"].get("streaming.sql.batchId")
            if batch is not None:
                jobs[int(batch)] = event
        elif kind.endswith(("SparkListenerSQLExecutionStart", "SparkListenerSQLExecutionEnd")):
            executions[event["executionId"]].append(event["time"])
        elif kind == "SparkListenerStageCompleted":
            stages[event["Stage Info"]["Stage ID"]] = event["Stage Info"]
        elif kind == "SparkListenerTaskEnd":
            tasks[event["Stage ID"]].append(event["Task Metrics"]["Executor Run Time"])
    found = []
    for batch in progress:
        job = jobs[batch["batchId"]]
        execution = executions[int(job["Properties"]["spark.sql.execution.id"])]
        found.append(_steps(batch, job, execution, stages, tasks))
    return found


def _steps(
    progress: Mapping[str, Any],
    job: Mapping[str, Any],
    execution: Sequence[int],
    stages: Mapping[int, Mapping[str, Any]],
    tasks: Mapping[int, Sequence[int]],
) -> dict[str, float]:
    took = defaultdict(int, progress["durationMs"])
    first, second = sorted(job["Stage IDs"])
    middle = stages[first]["Completion Time"]
    begun, (first_ms, last_ms) = job["Submission Time"], execution
    operators = progress["stateOperators"]
    known = ("walCommit", "latestOffset", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
    return {
        "trigger": took["triggerExecution"],
        "offsets_log": took["walCommit"],
        "planning": took["latestOffset"] + took["getBatch"] + took["queryPlanning"],
        "plan": took["addBatch"] - (last_ms - first_ms),
        "before_job": begun - first_ms,
        "source_stage": middle - begun,
        "state_stage": stages[second]["Completion Time"] - middle,
        "task": max(tasks[second]),
        "store_update": sum(o["allUpdatesTimeMs"] for o in operators) / _PARTITIONS,
        "store_commit": sum(o["commitTimeMs"] for o in operators) / _PARTITIONS,
        "after_job": last_ms - stages[second]["Completion Time"],
        "commits_log": took["commitOffsets"],
        "rest": took["triggerExecution"] - sum(took[name] for name in known),
    }


def medians(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each step."""
    return {step: statistics.median(b[step] for b in batches) for step in STEPS}


def render(results: Mapping[str, Any]) -> str:
    """Return the table: a row for each step, a column for each contender."""
    names = [n for n in LABELS if n in results["contenders"]]
    found = {n: medians(results["contenders"][n]["batches"]) for n in names}
    rows = [[text, *(f"{found[n][step]:.0f}" for n in names)] for step, text in STEPS.items()]
    return table(["ms", *(LABELS[n] for n in names)], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 if something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=60, help="that count (60)")
    parser.add_argument("--warmup", type=int, default=100, help="before them (100)")
    parser.add_argument("--rows", type=int, default=100, help="of a batch (100)")
    parser.add_argument("--contenders", default=",".join(LABELS), help="with commas")
    parser.add_argument("--out", type=Path, help="results")
    given = parser.parse_args(arguments)

    def measured(work: Path) -> dict[str, Any]:
        classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
        contenders = {}
        for name in given.contenders.split(","):
            print(name, file=sys.stderr, flush=True)
            contenders[name] = measure(
                name,
                work / name,
                classes,
                rows=given.rows,
                warmup=given.warmup,
                batches=given.batches,
            )
        return {"quick": given.batches < 60, "contenders": contenders}

    return run_program("small", given.out, measured, render)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        process(sys.argv[1], sys.argv[2])
    else:
        sys.exit(main())
