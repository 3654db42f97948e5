# SPDX-License-Identifier: Apache-2.0
"""What is measured: the measures, and the goals of Millpond. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.bench_contenders import (
    BASELINE,
    HEAP_PEER,
    KEY_AND_VALUE_BYTES,
    OURS,
    OURS_QUARTER,
)
from benchmarks.bench_extracts import (
    Extract,
    batch_ms,
    commit_snapshot_ratio,
    disk_ratio,
    gc_ms,
    grown_state,
    median,
    median_in,
    number,
    p99,
    rows_per_s,
    snapshot_ratio,
    written_share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal of Millpond.

    `met` takes the medians by contender and the number of keys. It returns None if a peer is
    missing.
    """

    text: str
    met: Callable[[Mapping[str, float], int], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One row of the table.

    Attributes:
        extract: takes the raw result of one process, and returns the figure; None if that process
            does not measure it.
        higher_is_better: it is a rate, not a cost.
        compare: a ratio between contenders means something.
        chart: the chart shows it.
        ours: the table shows the ratios of this contender to the peers.
        only: the contenders that have it; empty: all.
    """

    name: str
    title: str
    unit: str
    level: str
    extract: Extract
    higher_is_better: bool = False
    compare: bool = True
    chart: bool = True
    goal: Goal | None = None
    ours: str = OURS
    only: tuple[str, ...] = ()

    def ratio(self, values: Mapping[str, float], mine: str, peer: str) -> float | None:
        """Return how many times better `mine` is than `peer`.

        None if one of them has no figure above zero. A difference of two readings, such as resident
        memory, may be zero or less if noise outweighs it.
        """
        a, b = values.get(mine), values.get(peer)
        if not self.compare or a is None or b is None or a <= 0 or b <= 0:
            return None
        return a / b if self.higher_is_better else b / a


def _faster(
    baseline: float, heap: float | None = None, *, rate: bool = False, ours: str = OURS
) -> Goal:
    def met(values: Mapping[str, float], _keys: int) -> bool | None:
        wanted = {BASELINE: baseline} | ({HEAP_PEER: heap} if heap is not None else {})
        if ours not in values or any(peer not in values for peer in wanted):
            return None
        mine = values[ours]
        return all(
            (mine / values[p] if rate else values[p] / mine) >= factor
            for p, factor in wanted.items()
        )

    return Goal(text=f"{baseline:g}x" + (f", {heap:g}x heap" if heap is not None else ""), met=met)


def _at_most(bound: float, text: str) -> Goal:
    return Goal(
        text=text, met=lambda values, _keys: values[OURS] <= bound if OURS in values else None
    )


def _memory_met(values: Mapping[str, float], keys: int) -> bool | None:
    if OURS not in values or BASELINE not in values:
        return None
    return values[OURS] <= values[BASELINE] + 1.5 * keys * KEY_AND_VALUE_BYTES / 2**20


def _store(
    name: str,
    title: str,
    unit: str,
    extract: Extract,
    *,
    compare: bool = True,
    chart: bool = True,
    goal: Goal | None = None,
) -> Measure:
    return Measure(
        name=name,
        title=title,
        unit=unit,
        level="store",
        extract=extract,
        compare=compare,
        chart=chart,
        goal=goal,
    )


def _rate(name: str, title: str, goal: Goal | None = None) -> Measure:
    extract = rows_per_s(name)
    return Measure(
        name=name,
        title=title,
        unit="rows/s",
        level="query",
        extract=extract,
        higher_is_better=True,
        goal=goal,
    )


def _rescale(
    current: int,
    partitions: int,
    command: Goal,
    first: Goal | None = None,
    both: Goal | None = None,
) -> tuple[Measure, ...]:
    case, title = f"{current}_to_{partitions}", f"rescale {current} to {partitions}"

    def measure(field: str, what: str, goal: Goal | None) -> Measure:
        return Measure(
            name=f"rescale_{case}_{field}",
            title=f"{title}{what}",
            unit="ms",
            level="rescale",
            extract=number(case, field),
            chart=False,
            goal=goal,
        )

    return (
        measure("work_ms", "", command),
        measure("first_batch_ms", ": first batch after it", first),
        measure("sum_ms", ": both", both),
    )


def _savepoint(
    name: str,
    title: str,
    unit: str,
    *,
    goal: Goal | None = None,
    scale: float = 1.0,
    rate: bool = False,
    only: tuple[str, ...] = (OURS,),
) -> Measure:
    extract = number(*name.split("."), scale=scale)
    return Measure(
        name=f"savepoint_{name.replace('.', '_')}",
        title=title,
        unit=unit,
        level="savepoint",
        extract=extract,
        higher_is_better=rate,
        chart=False,
        goal=goal,
        only=only,
    )


def _at_least(bound: float, text: str) -> Goal:
    return Goal(
        text=text, met=lambda values, _keys: values[OURS] >= bound if OURS in values else None
    )


def _scan(
    name: str,
    title: str,
    unit: str,
    extract: Extract,
    *,
    compare: bool = True,
    goal: Goal | None = None,
) -> Measure:
    return replace(
        _store(name, title, unit, extract, compare=compare, chart=False, goal=goal), level="scan"
    )


_written_with_snapshots = number("bytes_per_batch_with_snapshots", scale=1 / 1024)

MEASURES: tuple[Measure, ...] = (
    _store("get_put_us", "get+put", "us", median("update_us_per_op"), goal=_faster(5, 1.5)),
    Measure(
        name="get_put_quarter_us",
        title="get+put, `memory.budget` a quarter of the state",
        unit="us",
        level="store",
        extract=median("update_us_per_op"),
        goal=_faster(1.5, ours=OURS_QUARTER),
        ours=OURS_QUARTER,
        only=(OURS_QUARTER, BASELINE),
        chart=False,
    ),
    _store("get_put_p99_us", "get+put, p99", "us", number("update_latency_us", "p99"), chart=False),
    _store("commit_ms", "commit", "ms", median("update_commit_ms"), goal=_faster(4)),
    _store("commit_p99_ms", "commit, p99", "ms", p99("update_commit_ms"), chart=False),
    _store(
        "load_us",
        "load of new keys, with commits",
        "us/key",
        number("load_us_per_key"),
        goal=_faster(3),
    ),
    _store(
        "reopen_ms",
        "re-open of the last version",
        "ms",
        median("update_reopen_ms"),
        goal=_at_most(0.5, "0.5 ms"),
    ),
    _store("rollback_ms", "rollback by one version", "ms", median("rollback_ms")),
    _store(
        "restore_first_get_ms",
        "restore to the first get",
        "ms",
        median("restore_first_get_ms"),
        goal=_faster(5),
    ),
    _store(
        "restore_all_ms",
        "restore to all rows read",
        "ms",
        median("restore_all_ms"),
        goal=_faster(1.5),
    ),
    _store("scan_us", "full scan", "us/row", median("scan_us_per_row"), goal=_faster(1.5)),
    _store(
        "bytes_per_batch",
        "durable bytes a batch",
        "KiB",
        number("bytes_per_batch", scale=1 / 1024),
    ),
    _store(
        "bytes_with_snapshots",
        "the same with snapshots",
        "KiB",
        _written_with_snapshots,
        chart=False,
    ),
    _store(
        "snapshot_get_put",
        "get+put p99 during a snapshot, against without",
        "x",
        snapshot_ratio,
        compare=False,
        chart=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _store(
        "snapshot_commit",
        "commit p99 during a snapshot, against without",
        "x",
        commit_snapshot_ratio,
        compare=False,
        chart=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _store(
        "memory_mib",
        "resident memory of the state",
        "MiB",
        number("memory", "state_bytes", scale=2**-20),
        goal=Goal(text="RocksDB + 1.5x data", met=_memory_met),
    ),
    _store(
        "children_mib",
        "beside it, child processes (the agent)",
        "MiB",
        number("memory", "after_update", "children", scale=2**-20),
        compare=False,
        chart=False,
    ),
    _store(
        "gc_ms", "garbage collection, load and updates", "ms", gc_ms, compare=False, chart=False
    ),
    _scan(
        "prefix_scan_us",
        "prefix scan of ten rows",
        "us",
        median_in("store", "prefix_scan_us"),
        goal=_faster(1),
    ),
    _scan(
        "ordered_scan_us",
        "scan in order",
        "us/row",
        median_in("store", "ordered_scan_us_per_row"),
        goal=_faster(1),
    ),
    _scan(
        "eviction_ms",
        "eviction of the 500 oldest rows",
        "ms",
        median_in("store", "eviction_ms"),
        goal=_faster(1),
    ),
    _scan(
        "eviction_growth",
        "the same, against a state of a tenth",
        "x",
        grown_state,
        compare=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _scan("disk_scan_us", "full scan, all on disk", "us/row", median_in("disk", "scan_us_per_row")),
    _scan(
        "disk_scan_raw",
        "full scan, all on disk, against RocksDB's iterator",
        "x",
        disk_ratio("scan_us_per_row", "raw_scan_us_per_row"),
        compare=False,
        goal=_at_most(1.2, "1.2"),
    ),
    _scan(
        "disk_prefix_scan_us",
        "prefix scan of ten rows, all on disk",
        "us",
        median_in("disk", "prefix_scan_us"),
    ),
    _scan(
        "disk_prefix_scan_raw",
        "prefix scan, all on disk, against RocksDB's iterator",
        "x",
        disk_ratio("prefix_scan_us", "raw_prefix_scan_us"),
        compare=False,
        goal=_at_most(1.2, "1.2"),
    ),
    _rate("aggregation", "aggregation", _faster(1.6, 1.15, rate=True)),
    _rate("join", "stream-stream join", _faster(1.3, rate=True)),
    _rate("session", "session window", _faster(1.3, rate=True)),
    _rate("pandas", "transformWithStateInPandas, two state calls a row"),
    Measure(
        name="partitions200",
        title="batch of 1k rows, 200 partitions",
        unit="ms",
        level="query",
        extract=batch_ms("partitions200"),
        goal=_faster(1.5),
    ),
    *_rescale(8, 16, _faster(25), _faster(1), _faster(5)),
    *_rescale(16, 8, _faster(25), _faster(1), _faster(5)),
    *_rescale(8, 12, _faster(3)),
    *_rescale(8, 7, _faster(1)),
    Measure(
        name="rescale_8_to_16_written",
        title="rescale 8 to 16: bytes written, of the state",
        unit="%",
        level="rescale",
        extract=written_share("8_to_16"),
        compare=False,
        chart=False,
        goal=_at_most(1.0, "1 %"),
    ),
    Measure(
        name="rescale_8_to_16_work",
        title="rescale 8 to 16: work beyond the start of the process",
        unit="s",
        level="rescale",
        extract=number("8_to_16", "work_ms", scale=1 / 1000),
        compare=False,
        chart=False,
        only=(OURS,),
        goal=_at_most(0.3, "0.3 s"),
    ),
    _savepoint("create_ms", "savepoint of a running query", "ms", goal=_at_most(1000, "1 000 ms")),
    _savepoint("create_written_bytes", "savepoint: bytes written", "KiB", scale=1 / 1024),
    _savepoint("fork_ms", "fork", "ms", goal=_at_most(300, "300 ms")),
    _savepoint("fork_written_bytes", "fork: bytes written", "KiB", scale=1 / 1024),
    _savepoint(
        "stop_ms",
        "stop with savepoint, after the running batch",
        "ms",
        goal=_at_most(500, "500 ms"),
    ),
    _savepoint(
        "export_rows_per_s",
        "savepoint as Parquet",
        "rows/s",
        rate=True,
        goal=_at_least(1_000_000, "1 000 000 rows/s"),
    ),
    _savepoint("restore_ms", "restore of a savepoint", "ms"),
    _savepoint(
        "first_batch_ms",
        "restore of a savepoint, or restart: to the first batch committed",
        "ms",
        goal=replace(_faster(1 / 1.2), text="1.2 of Spark's"),
        only=(),
    ),
    *(
        _savepoint(
            f"codec.{schema}_{way}_rows_per_s",
            f"{title}: {columns}, one core",
            "rows/s",
            rate=True,
            goal=_at_least(1_000_000, "1 000 000 rows/s") if schema == "fixed" else None,
        )
        for schema, columns in (("fixed", "four fixed-width columns"), ("text", "those and a text"))
        for way, title in (("decode", "rows to Arrow"), ("encode", "Arrow to rows"))
    ),
)
