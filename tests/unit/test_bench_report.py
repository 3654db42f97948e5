# SPDX-License-Identifier: Apache-2.0
"""The benchmark's sums, without a run of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks import bench_chart, bench_snapshots
from benchmarks.bench_contenders import BASELINE, CONTENDERS
from benchmarks.bench_measures import MEASURES

_MEMORY = next(m for m in MEASURES if m.name == "memory_mib")


@pytest.mark.parametrize("value", [0.0, -3.5, None])
def test_no_ratio_to_what_noise_outweighs(value: float | None) -> None:
    values = {"a": 2.0} | ({} if value is None else {"b": value})
    assert _MEMORY.ratio(values, "a", "b") is None
    assert _MEMORY.ratio(values, "b", "a") is None


def test_a_cost_of_half_is_twice_as_good() -> None:
    assert _MEMORY.ratio({"a": 2.0, "b": 4.0}, "a", "b") == 2.0


def test_the_chart_knows_every_contender() -> None:
    everyone = {"contenders": [{"name": name} for name in CONTENDERS]}
    ratios = dict.fromkeys((name for name in CONTENDERS if name != BASELINE), 2.0)
    row = {
        "title": "get+put",
        "unit": "us",
        "median": dict.fromkeys(CONTENDERS, 1.0),
        "times_better_than_baseline": ratios,
    }
    about = {
        "repetitions": 1,
        "versions": {"spark": "4.3.0"},
        "host": {"cores": 2},
        "store_sizes": {"keys": 1_000_000},
    }
    drawn = bench_chart.svg(everyone | {"summary": {"get_put_us": row}} | about)
    for name in ratios:
        assert CONTENDERS[name].label in drawn


def test_a_snapshot_beside_the_batches() -> None:
    quiet, busy = {"p50": 0.5, "p99": 1.0, "max": 30.0}, {"p50": 0.6, "p99": 1.5, "max": 90.0}
    measured = {
        "update_latency_us": quiet,
        "get_put_during_snapshot_us": busy,
        "update_commit_ms": [5.0, 6.0, 7.0],
        "commit_during_snapshot_ms": [6.0, 8.0, 9.0],
    }
    lines = bench_snapshots.table(
        {"hdfs": [{"update_latency_us": quiet}], "millpond": [measured]}
    ).splitlines()
    assert lines[2:] == [
        "| Millpond: get+put, us | 0.50 | 1.00 | 30.0 | 0.60 | 1.50 | 90.0 |",
        "| Millpond: commit, ms | 6.00 | 7.00 | 7.00 | 8.00 | 9.00 | 9.00 |",
    ]
    assert bench_snapshots.table({"hdfs": [{"update_latency_us": quiet}]}) == ""
