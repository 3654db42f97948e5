"""Figures of the latency benchmark: buckets, quantiles, what is a boundary, tables, charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_latency, bench_latency_chart, bench_latency_report
from benchmarks.bench_contenders import BASELINE, OURS
from benchmarks.bench_latency_measures import boundaries, derive, quantile_ms, upper_us


def _batch(begun_ms: int, took_ms: int, changed: int = 0, commit_ms: float = 0) -> dict[str, Any]:
    return {
        "begun_ms": begun_ms,
        "duration_ms": {"triggerExecution": took_ms},
        "changed": changed,
        "commit_ms": commit_ms,
    }


def test_each_value_is_in_one_bucket_and_within_three_percent() -> None:
    """A bucket begins where the one before it ends."""
    for bucket in range(32 * 30):
        low, high = upper_us(bucket - 1) + 1 if bucket else 0, upper_us(bucket)
        assert low <= high <= max(low * 33 / 32, 63)
    assert upper_us(31) == 31 and upper_us(64) == 65 and upper_us(95) == 127


def test_quantiles() -> None:
    histogram = {10: 50, 20: 49, 30: 1}
    assert [quantile_ms(histogram, q) for q in (0.5, 0.51, 0.99, 0.999)] == [
        0.010,
        0.020,
        0.020,
        0.030,
    ]
    assert quantile_ms({}, 0.5) is None


def test_what_lies_at_a_boundary() -> None:
    """A record counts as inside from a second after a batch's begin to the end of its time."""
    batches = [_batch(0, 10_500, 9, 40), _batch(10_600, 10_200, 5, 8), _batch(20_900, 10_300)]
    assert boundaries(batches, 10_000) == [(10_000, 10_500, 10_600), (20_600, 20_800, 20_900)]
    # Slots of 100 ms from 5 s on: one record each, slow ones from 10 s to 11.6 s.
    slow = range(50, 66)
    slots = [[[500 if i in slow else 40, 1]] for i in range(100)]
    times = {
        "from_ms": 5_000,
        "slot_ms": 100,
        "expected": 100,
        "count": 100,
        "max_us": [500_000 if i in slow else 45 for i in range(100)],
        "slots": slots,
    }
    found = derive(times, batches, 10_000)
    figures = found["figures"]
    assert figures["p99_inside"] == upper_us(40) / 1000
    assert figures["p999"] == upper_us(500) / 1000 and figures["max"] == 500
    # Only the first boundary is in the measured time; the largest batch may be before it.
    assert (figures["pause"], figures["commit"], found["boundaries"]) == (500, 40, 1)
    assert (figures["commit_largest"], found["changed_largest"]) == (40, 9)
    with pytest.raises(ValueError, match="99 results of 100"):
        derive({**times, "count": 99}, batches, 10_000)


def test_without_batches_all_is_inside() -> None:
    times = {"from_ms": 0, "slot_ms": 100, "expected": 1, "count": 1, "max_us": [7, 0]}
    found = derive({**times, "slots": [[[7, 1]], []]}, [], 1000)
    assert found["figures"]["p99_inside"] == 0.007 and found["figures"]["commit"] is None
    assert found["series"]["max_ms"] == [0.007, None]


def _results() -> dict[str, Any]:
    def run(factor: float) -> dict[str, Any]:
        names = ("p50_inside", "p99_inside", "p999", "max", "pause", "commit", "commit_largest")
        series = {"p50_ms": [factor, None], "p99_ms": [factor, None], "max_ms": [9 * factor, None]}
        figures = {name: factor * (i + 1) for i, name in enumerate(names)}
        return {"figures": figures, "changed_largest": 1_000_000, "series": series}

    cell = bench_latency.cell("memory-count-10000-1000000", seconds=60, trigger_s=10)
    contenders = {OURS: run(1), BASELINE: run(3), "flink": run(0.5)}
    for name in ("pause", "commit", "commit_largest"):
        contenders["flink"]["figures"][name] = None
    return {"cells": {cell.name: {"cell": asdict(cell), "contenders": contenders}}}


def test_tables_say_what_is_missed() -> None:
    """Three times better is enough for a half, and not for a quarter."""
    text = bench_latency_report.tables(_results(), goals=True)
    lines = text.splitlines()
    assert "| group-by-count, 10 000 records/s, 1 000 000 keys | Millpond | 1.00 | 2.00 |" in text
    assert lines[-1].endswith("| 3.0x | 3.0x | 3.0x | 3.0x | 3.0x (missed) |")
    assert lines[-2] == "| goal | 1x | 1x | 2x | 2x | 4x |"
    assert sum("Flink" in line for line in lines) == 1


def test_each_cell_says_of_which_run_it_is() -> None:
    """A file gets cells of a later commit, measured on another machine. Whether there were changes
    was told by the first run.
    """
    first, second = (
        bench_latency.cell(name, seconds=9, trigger_s=3) for name in bench_latency.FULL[:2]
    )
    results: dict[str, Any] = {"cells": {}}
    machine = {"cores": 2, "cpu": "one", "memory_bytes": 1 << 30, "file_system": "ext4"}
    other = machine | {"cpu": "two"}
    told: dict[str, Any] = {}
    for commit, dirty, cell in (("a", False, first), ("b", True, second), ("b", False, second)):
        told = {"commit": commit * 40, "time_utc": f"2026-01-0{len(results['cells']) + 1}"}
        told |= {"dirty": dirty, "host": machine if cell is first else other}
        kept = bench_latency._kept(results, cell, told, Path("results"))
        kept["contenders"] |= {str(dirty): {}}
    assert [*results["cells"][second.name]["contenders"]] == ["True", "False"]
    results["versions"] = {"spark": "4.3.0", "java": "17"}
    text = " ".join(bench_latency_report._where(results, Path("results")).split())
    assert text.startswith(
        "Measured: 1 cell from 2026-01-01 on at commit `aaaaaaaaaaaa`, 2 cores of one, 1 GiB, ext4;"
        " 1 cell from 2026-01-02 on at commit `bbbbbbbbbbbb` with changes, 2 cores of two, 1 GiB,"
    )
    for other_run in ({"commit": "c" * 40}, {"host": machine}):
        again = bench_latency._kept(results, second, told | other_run, Path("results"))
        assert not again["contenders"]
        again["contenders"] |= {"again": {}}


def test_the_chart_has_two_lines_for_each_contender() -> None:
    cells = list(_results()["cells"].values())
    chart = bench_latency_chart.svg(
        "From <memory>", cells, bench_latency_report.title, bench_latency_report.LABELS
    )
    root = ElementTree.fromstring(chart)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    coloured = [line for line in lines if line.get("stroke") != "#d9dee4"]
    assert len(coloured) == 6


def test_unknown_cells_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown cell x; there are memory-count-1000-1000, "):
        bench_latency.cell("x", seconds=1, trigger_s=1)
    assert len(bench_latency.FULL) == 24 and set(bench_latency.SHORT) <= set(bench_latency.FULL)


def test_a_batchs_time_does_not_count_unless_told() -> None:
    times = {"seconds": 40, "trigger_s": 10}
    assert bench_latency.cell("kafka-count-1000-1000", **times).warmup_s == 10
    assert bench_latency.cell("kafka-count-1000-1000", **times, warmup_s=30).warmup_s == 30
