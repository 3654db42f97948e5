"""The split of a small batch: which times of Spark's become which step."""

from __future__ import annotations

from typing import Any

from benchmarks.bench_small import LABELS, STEPS, render, split


def _stage(number: int, completed: int) -> dict[str, Any]:
    info = {"Stage ID": number, "Completion Time": completed}
    return {"Event": "SparkListenerStageCompleted", "Stage Info": info}


def _task(stage: int, run_ms: int) -> dict[str, Any]:
    metrics = {"Executor Run Time": run_ms}
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}


def _sql(what: str, at: int) -> dict[str, Any]:
    name = f"org.apache.spark.sql.execution.ui.SparkListenerSQLExecution{what}"
    return {"Event": name, "executionId": 4, "time": at}


def test_the_steps_of_a_batch() -> None:
    """A job of another query is in the same log."""
    properties = {"streaming.sql.batchId": "7", "spark.sql.execution.id": "4"}
    events = [
        {"Event": "SparkListenerJobStart", "Job ID": 0, "Stage IDs": [0], "Properties": {}},
        _sql("Start", 1000),
        {
            "Event": "SparkListenerJobStart",
            "Job ID": 1,
            "Stage IDs": [3, 2],
            "Submission Time": 1005,
            "Properties": properties,
        },
        _task(2, 20),
        _stage(2, 1040),
        _task(3, 30),
        _task(3, 25),
        _stage(3, 1085),
        _sql("End", 1090),
    ]
    progress = {
        "batchId": 7,
        "durationMs": {
            "triggerExecution": 200,
            "walCommit": 40,
            "queryPlanning": 6,
            "latestOffset": 1,
            "addBatch": 100,
            "commitOffsets": 50,
        },
        "stateOperators": [{"allUpdatesTimeMs": 8, "commitTimeMs": 14}],
    }
    (found,) = split([progress], events)
    assert found == {
        "trigger": 200,
        "offsets_log": 40,
        "planning": 7,
        "plan": 10,
        "before_job": 5,
        "source_stage": 35,
        "state_stage": 45,
        "task": 30,
        "store_update": 4,
        "store_commit": 7,
        "after_job": 5,
        "commits_log": 50,
        "rest": 3,
    }
    # Besides what is of another step, the steps are the whole.
    parts = set(STEPS) - {"trigger", "task", "store_update", "store_commit"}
    assert sum(found[step] for step in parts) == found["trigger"]


def test_the_table_has_medians() -> None:
    batches = [dict.fromkeys(STEPS, float(n)) for n in (9, 1, 3)]
    lines = render({"contenders": {"hdfs": {"batches": batches}}}).splitlines()
    assert lines[0] == f"| ms | {LABELS['hdfs']} |"
    assert lines[2] == "| the whole batch | 3 |" and len(lines) == 2 + len(STEPS)
