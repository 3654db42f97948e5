# SPDX-License-Identifier: Apache-2.0
"""The measures of the level of Python's state (`bench_python`), and their goals. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.bench_contenders import BASELINE, OURS
from benchmarks.bench_extracts import (
    Extract,
    batch_ms,
    rates_ratio,
    resident_mib,
    rows_per_s,
    times_ratio,
)
from benchmarks.bench_goals import Goal, Measure, at_most, faster


def _python(
    name: str,
    title: str,
    unit: str,
    extract: Extract,
    *,
    goal: Goal | None = None,
    rate: bool = False,
    compare: bool = True,
    only: tuple[str, ...] = (),
) -> Measure:
    return Measure(
        name=f"python_{name}",
        title=title,
        unit=unit,
        level="python",
        extract=extract,
        higher_is_better=rate,
        compare=compare,
        chart=False,
        goal=goal,
        only=only,
    )


def _python_rate(name: str, title: str, factor: float) -> Measure:
    goal = faster(factor, rate=True)
    return _python(name, title, "keys/s", rows_per_s(name), goal=goal, rate=True)


def _not_above(extra_mib: float) -> Goal:
    def met(values: Mapping[str, float], _keys: int) -> bool | None:
        if OURS not in values or BASELINE not in values:
            return None
        return values[OURS] <= values[BASELINE] + extra_mib

    return Goal(text=f"RocksDB + {extra_mib:g} MiB", met=met)


_PYTHON = "Python's transformWithState"

MEASURES: tuple[Measure, ...] = (
    _python_rate("rows", f"{_PYTHON}: a value read and written, 30 000 keys a batch", 8),
    _python_rate("rows_many", f"{_PYTHON}: the same, 300 000 keys a batch", 12),
    _python_rate("pandas", "transformWithStateInPandas: the same, 30 000 keys a batch", 5),
    _python_rate("apply", "applyInPandasWithState: the same, 30 000 keys a batch", 3),
    _python_rate("map", f"{_PYTHON}: 3 entries of a map read, 1 written", 8),
    _python_rate("list", f"{_PYTHON}: 10 items of a list read, 1 appended", 8),
    _python_rate("timers", f"{_PYTHON}: a timer registered, and one expired", 6),
    _python(
        "small",
        f"{_PYTHON}: batch of 100 keys",
        "ms",
        batch_ms("small"),
        goal=faster(2),
    ),
    _python(
        "small_stateless",
        "the same rows through Python, without state: batch of 100 keys",
        "ms",
        batch_ms("small_stateless"),
    ),
    _python("small_count", "a count: batch of 100 keys", "ms", batch_ms("small_count")),
    _python(
        "small_against_count",
        f"{_PYTHON}: batch of 100 keys, against the count's",
        "x",
        times_ratio("small", "small_count"),
        compare=False,
        goal=at_most(1.5, "1.5"),
    ),
    _python(
        "memory_mib",
        f"{_PYTHON}, 300 000 keys: resident memory of workers and executor",
        "MiB",
        resident_mib("rows_many", "jvm_bytes", "workers_bytes"),
        goal=_not_above(64),
    ),
    _python(
        "workers_mib",
        f"{_PYTHON}, 300 000 keys: of the workers alone",
        "MiB",
        resident_mib("rows_many", "workers_bytes"),
        compare=False,
    ),
    *(
        _python(
            f"scala_{query}",
            f"Scala's transformWithState: {title}",
            "keys/s",
            rows_per_s(f"scala_{query}"),
            rate=True,
            only=(OURS,),
        )
        for query, title in (
            ("value", "a value read and written"),
            ("map", "3 entries of a map read, 1 written"),
            ("list", "10 items of a list read, 1 appended"),
            ("timers", "a timer registered, and one expired"),
        )
    ),
    *(
        _python(
            f"of_scala_{query}",
            f"Python's rate, of Scala's: {query}",
            "x",
            rates_ratio("rows" if query == "value" else query, f"scala_{query}"),
            compare=False,
            only=(OURS,),
        )
        for query in ("value", "map", "list", "timers")
    ),
)
