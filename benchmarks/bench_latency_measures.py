# SPDX-License-Identifier: Apache-2.0
"""From histograms of latency to figures, and the goals of real-time mode. Pure.

Bucket numbers are those of `Latencies.scala`: 32 for each power of two of microseconds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.bench_goals import Goal, faster

# Records that are due so soon after the begin of a batch wait for it, or for those before them.
_SETTLING_MS = 1000


def upper_us(bucket: int) -> int:
    """Return the largest value of a bucket."""
    shift = max(bucket // 32 - 1, 0)
    return int((((bucket - shift * 32) + 1) << shift) - 1)


def quantile_ms(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the latency that `share` of the records do not exceed; None if there are none."""
    total = sum(histogram.values())
    if not total:
        return None
    left = share * total
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 1e-9 * total:
            return upper_us(bucket) / 1000
    raise AssertionError("the shares do not add up")


def boundaries(
    batches: Sequence[Mapping[str, Any]], trigger_ms: int
) -> list[tuple[float, float, float]]:
    """Return when each batch had used up its time, when it ended, and when the next one began.

    Without the last batch. Times are in ms since 1970.
    """
    found = []
    for batch, after in itertools.pairwise(batches):
        begun = batch["begun_ms"]
        end = begun + batch["duration_ms"]["triggerExecution"]
        found.append((begun + trigger_ms, end, after["begun_ms"]))
    return found


def _apart(slot_ms: tuple[float, float], pauses: Sequence[tuple[float, float, float]]) -> bool:
    begin, end = slot_ms
    return all(end <= used or begin >= after + _SETTLING_MS for used, _, after in pauses)


def derive(
    times: Mapping[str, Any], batches: Sequence[Mapping[str, Any]], trigger_ms: int
) -> dict[str, Any]:
    """Return what the results keep of one process.

    Args:
        times: what `Latencies.json` says.
        batches: of the whole process; the first ones fill the state. None of Flink.
    Raises: ValueError: results of records are missing, or came twice.
    """
    if times["count"] != times["expected"]:
        raise ValueError(f"{times['count']} results of {times['expected']} records")
    from_ms, slot_ms = times["from_ms"], times["slot_ms"]
    to_ms = from_ms + slot_ms * len(times["slots"])
    pauses = boundaries(batches, trigger_ms)
    every: Counter[int] = Counter()
    inside: Counter[int] = Counter()
    series: dict[str, list[float | None]] = {"p50_ms": [], "p99_ms": [], "max_ms": []}
    for i, pairs in enumerate(times["slots"]):
        slot = Counter(dict(pairs))
        every.update(slot)
        begin = from_ms + i * slot_ms
        if _apart((begin, begin + slot_ms), pauses):
            inside.update(slot)
        series["p50_ms"].append(quantile_ms(slot, 0.5))
        series["p99_ms"].append(quantile_ms(slot, 0.99))
        series["max_ms"].append(times["max_us"][i] / 1000 if slot else None)
    measured = [b for b, p in zip(batches, pauses, strict=False) if from_ms <= p[0] < to_ms]
    over = [b["duration_ms"]["triggerExecution"] - trigger_ms for b in measured]
    commits = [b["commit_ms"] for b in measured if b["commit_ms"] is not None]
    largest = max(batches, key=lambda b: int(b["changed"]), default=None)
    return {
        "records": times["count"],
        "figures": {
            "p50_inside": quantile_ms(inside, 0.5),
            "p99_inside": quantile_ms(inside, 0.99),
            "p999": quantile_ms(every, 0.999),
            "max": max(times["max_us"]) / 1000,
            "pause": sum(over) / len(over) if over else None,
            "commit": sum(commits) / len(commits) if commits else None,
            "commit_largest": largest["commit_ms"] if largest else None,
        },
        "changed_largest": largest["changed"] if largest else None,
        "boundaries": len(measured),
        "slot_ms": slot_ms,
        "from_ms": from_ms,
        "series": series,
        "histogram": sorted(every.items()),
        "batches": list(batches),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One column of the table. All are ms, and less is better."""

    name: str
    title: str
    goal: Goal | None = None


FIGURES = (
    Figure(name="p50_inside", title="p50 in a batch", goal=faster(1)),
    Figure(name="p99_inside", title="p99 in a batch", goal=faster(1)),
    Figure(name="p999", title="p99.9", goal=faster(2)),
    Figure(name="max", title="max", goal=faster(2)),
    Figure(name="pause", title="batch beyond its time"),
    Figure(name="commit", title="of it commit"),
)
COMMIT = Figure(name="commit_largest", title="commit", goal=faster(4))
