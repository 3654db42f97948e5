"""Metrics of queries in Spark's real-time mode: the counts of rows equal those of Spark's store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.harness import millponds_own
from integration.jvm import IS_SPARK_4_2
from integration.processes import wait_until
from integration.real_time import RealTimeJob, with_either_store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.deep,
    millponds_own,
    pytest.mark.skipif(IS_SPARK_4_2, reason="Spark 4.2 has no state in real-time mode"),
]

ADDED = ("numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")
_SPAN_S = 0.5  # of a batch
_START_S = 1_700_000_000


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealTimeJob]]:
    with with_either_store(tmp_path_factory.mktemp("real-time-metrics")) as both:
        yield both


def _rows(at_s: int) -> list[str]:
    """Return rows of seven keys, at a time of the event, and a few of one second each."""
    return [f"{'abcdefg'[i % 7]},{_START_S + at_s + i % 4},{i % 5}" for i in range(28)]


# Each key has one row in a set, since Spark counts an update a batch, and batches end by the clock.
_SETS = {
    "count": [[f"{k},{_START_S},{n}" for k in keys] for n, keys in enumerate(["abc", "bcd", "e"])],
    "window": [_rows(0)[:1], _rows(100)[:1], [f"z,{_START_S},1"], _rows(200)[:1]],
    "dedup-watermark": [_rows(0)[:7], _rows(100)[:7], _rows(0)[:3], _rows(200)[:7]],
    "no-time": [_rows(0)[:7], _rows(100)[:5]],
    "event-time": [_rows(0)[:7], _rows(100)[:1], [f"z,{_START_S},1"], _rows(200)[:1]],
}


def _settle(job: RealTimeJob) -> None:
    """Wait for the end of all rows' batches, and of two more: the first has the new watermark."""
    batch = job.do("settle")
    wait_until(
        lambda: job.do("progress")[-1]["batchId"] >= batch + 2, seconds=60, what="two more batches"
    )


def _operators(job: RealTimeJob) -> list[dict[str, Any]]:
    """Return what each batch that ended says of the query's stateful operator."""
    return [p["stateOperators"][0] for p in job.do("progress") if p["stateOperators"]]


def _counts(operators: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sums over batches, whose number depends on the clock, and the rows at the end."""
    sums = {name: sum(op[name] for op in operators) for name in ADDED}
    return sums | {"numRowsTotal": operators[-1]["numRowsTotal"]}


@pytest.mark.parametrize("query", list(_SETS))
def test_counts_of_rows_equal_those_of_sparks_store(
    jobs: dict[str, RealTimeJob], query: str
) -> None:
    """After each set of rows. Millpond's own metrics are there, and fit to each other."""
    counts: dict[str, list[dict[str, int]]] = {name: [] for name in jobs}
    for name, job in jobs.items():
        job.do("new_source")
        job.do("start", query=query, seconds=_SPAN_S)
        for rows in _SETS[query]:
            job.do("add", rows=rows)
            _settle(job)
            counts[name].append(_counts(_operators(job)))
        operators = _operators(job)
        job.do("stop")
        if name == "millpond":
            _check_own(operators)
    assert counts["millpond"] == counts["rocksdb"]
    last = counts["millpond"][-1]
    assert last["numRowsTotal"] > 0 and last["numRowsUpdated"] > 0
    if query not in ("count", "no-time"):
        assert last["numRowsRemoved"] > 0
    if query in ("window", "dedup-watermark"):
        assert last["numRowsDroppedByWatermark"] > 0


def _check_own(operators: list[dict[str, Any]]) -> None:
    for op in operators:
        own = op["customMetrics"]
        assert own["millpondMemoryBytes"] == op["memoryUsedBytes"]
        assert (op["memoryUsedBytes"] > 0) == (op["numRowsTotal"] > 0)
        assert own["millpondDiskBytes"] >= 0
        assert own["millpondChangelogMs"] >= 0 and own["millpondAgentCallMs"] >= 0
        assert own["millpondSpills"] == own["millpondShrinks"] == own["millpondEvictedBytes"] == 0
        assert own["millpondExpiredRows"] == own["millpondStoragePutRequests"] == 0
    assert sum(op["customMetrics"]["millpondChangelogBytes"] for op in operators) > 0
    assert sum(op["customMetrics"]["millpondSnapshotCount"] for op in operators) <= 2 * len(
        operators
    )
