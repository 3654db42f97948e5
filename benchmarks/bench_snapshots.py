# SPDX-License-Identifier: Apache-2.0
"""How much a snapshot disturbs the batch beside it: a table from raw results. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import bench_report
from benchmarks.bench_contenders import CONTENDERS
from benchmarks.bench_extracts import percentile
from benchmarks.bench_report import figure

_HEADS = ("", "p50", "p99", "max", "p50 beside a snapshot", "p99 beside it", "max beside it")


def table(store: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a Markdown table of get+put (us) and commit (ms) for each contender with the phase.

    Empty if no contender has it. Figures are medians over the repetitions.

    Args:
        store: raw results by contender, one for each repetition.
    """
    rows = []
    for name, results in store.items():
        busy = [
            r
            for r in results
            if r.get("get_put_during_snapshot_us") and r.get("commit_during_snapshot_ms")
        ]
        if busy:
            rows.append(
                [f"{CONTENDERS[name].label}: get+put, us", *_medians([_pairs(r) for r in busy])]
            )
            rows.append(
                [f"{CONTENDERS[name].label}: commit, ms", *_medians([_commits(r) for r in busy])]
            )
    if not rows:
        return ""
    return bench_report.table(_HEADS, rows)


def _medians(repetitions: Sequence[Sequence[float]]) -> list[str]:
    return [figure(statistics.median(values)) for values in zip(*repetitions, strict=True)]


def _pairs(result: Mapping[str, Any]) -> list[float]:
    both = (result["update_latency_us"], result["get_put_during_snapshot_us"])
    return [float(latency[q]) for latency in both for q in ("p50", "p99", "max")]


def _commits(result: Mapping[str, Any]) -> list[float]:
    both = (result["update_commit_ms"], result["commit_during_snapshot_ms"])
    return [
        value for ms in both for value in (statistics.median(ms), percentile(ms, 0.99), max(ms))
    ]
