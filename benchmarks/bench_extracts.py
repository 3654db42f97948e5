# SPDX-License-Identifier: Apache-2.0
"""Takes one figure out of the raw result of a process. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Extract = Callable[[Mapping[str, Any]], float | None]
"""Takes a raw result, and returns the figure; None if that process does not measure it."""


def percentile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank percentile, `q` in (0, 1]. Of few values it is their maximum."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def median(name: str) -> Extract:
    """Take the median of a list."""
    return lambda r: statistics.median(r[name]) if r.get(name) else None


def number(*path: str, scale: float = 1.0) -> Extract:
    """Take a number, by the names on the way to it, times `scale`."""

    def extract(result: Mapping[str, Any]) -> float | None:
        value: Any = result
        for step in path:
            value = value.get(step) if value is not None else None
        return None if value is None else float(value) * scale

    return extract


def p99(name: str) -> Extract:
    """Take the 99th percentile of a list."""
    return lambda r: percentile(r[name], 0.99) if r.get(name) else None


def snapshot_ratio(result: Mapping[str, Any]) -> float | None:
    """Take how many times slower get and put are during a snapshot."""
    busy, quiet = result.get("get_put_during_snapshot_us"), result["update_latency_us"]
    return busy["p99"] / quiet["p99"] if busy else None


def commit_snapshot_ratio(result: Mapping[str, Any]) -> float | None:
    """Take how many times slower a commit is during a snapshot."""
    busy = result.get("commit_during_snapshot_ms")
    return percentile(busy, 0.99) / percentile(result["update_commit_ms"], 0.99) if busy else None


def gc_ms(result: Mapping[str, Any]) -> float | None:
    """Take the time of garbage collection, of load and updates."""
    return float(result["gc_ms"]["load"] + result["gc_ms"]["update"])


def rows_per_s(scenario: str) -> Extract:
    """Take the rate of the median batch."""

    def extract(result: Mapping[str, Any]) -> float | None:
        batches = _measured(result, scenario)
        return (
            statistics.median(b["rows"] * 1000.0 / b["trigger_ms"] for b in batches)
            if batches
            else None
        )

    return extract


def batch_ms(scenario: str) -> Extract:
    """Take the time of the median batch."""

    def extract(result: Mapping[str, Any]) -> float | None:
        batches = _measured(result, scenario)
        return statistics.median(float(b["trigger_ms"]) for b in batches) if batches else None

    return extract


def _measured(result: Mapping[str, Any], scenario: str) -> list[dict[str, Any]]:
    found = result.get(scenario)
    return list(found["batches"][found["warmup"] :]) if found else []


def written_share(case: str) -> Extract:
    """Take what a rescale wrote, in percent of the state."""

    def extract(result: Mapping[str, Any]) -> float | None:
        found = result.get(case)
        return 100.0 * found["written_bytes"] / found["state_bytes"] if found else None

    return extract


def disk_ratio(name: str, raw: str) -> Extract:
    """Take how many times slower a scan is than that of RocksDB's own iterator."""

    def extract(result: Mapping[str, Any]) -> float | None:
        disk = result.get("disk")
        return float(statistics.median(disk[name]) / statistics.median(disk[raw])) if disk else None

    return extract


def grown_state(result: Mapping[str, Any]) -> float | None:
    """Take how many times slower eviction is than with a state of a tenth."""
    found = result["store"]
    return float(
        statistics.median(found["eviction_ms"]) / statistics.median(found["eviction_of_a_tenth_ms"])
    )


def median_in(part: str, name: str) -> Extract:
    """Take the median of a list of a part of the result."""
    return lambda r: statistics.median(r[part][name]) if part in r else None


def rates_ratio(mine: str, other: str) -> Extract:
    """Take how many times faster one scenario is than another."""

    def extract(result: Mapping[str, Any]) -> float | None:
        a, b = rows_per_s(mine)(result), rows_per_s(other)(result)
        return a / b if a is not None and b is not None else None

    return extract


def times_ratio(mine: str, other: str) -> Extract:
    """Take how many times longer a batch of one scenario takes than one of another."""

    def extract(result: Mapping[str, Any]) -> float | None:
        a, b = batch_ms(mine)(result), batch_ms(other)(result)
        return a / b if a is not None and b is not None else None

    return extract


def resident_mib(scenario: str, *parts: str) -> Extract:
    """Take the largest resident memory of the `parts` of a scenario, together."""

    def extract(result: Mapping[str, Any]) -> float | None:
        found = result.get(scenario)
        return sum(found[part] for part in parts) / 2**20 if found else None

    return extract
