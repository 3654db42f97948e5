# SPDX-License-Identifier: Apache-2.0
"""What is measured, and the goals of Millpond. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks import bench_python_measures
from benchmarks.bench_contenders import (
    BASELINE,
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
from benchmarks.bench_goals import Goal, Measure, at_least, at_most, faster


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
    _store("get_put_us", "get+put", "us", median("update_us_per_op"), goal=faster(5, 1.5)),
    Measure(
        name="get_put_quarter_us",
        title="get+put, `memory.budget` a quarter of the state",
        unit="us",
        level="store",
        extract=median("update_us_per_op"),
        goal=faster(1.5, ours=OURS_QUARTER),
        ours=OURS_QUARTER,
        only=(OURS_QUARTER, BASELINE),
        chart=False,
    ),
    _store("get_put_p99_us", "get+put, p99", "us", number("update_latency_us", "p99"), chart=False),
    _store("commit_ms", "commit", "ms", median("update_commit_ms"), goal=faster(4)),
    _store("commit_p99_ms", "commit, p99", "ms", p99("update_commit_ms"), chart=False),
    _store(
        "load_us",
        "load of new keys, with commits",
        "us/key",
        number("load_us_per_key"),
        goal=faster(3),
    ),
    _store(
        "reopen_ms",
        "re-open of the last version",
        "ms",
        median("update_reopen_ms"),
        goal=at_most(0.5, "0.5 ms"),
    ),
    _store("rollback_ms", "rollback by one version", "ms", median("rollback_ms")),
    _store(
        "restore_first_get_ms",
        "restore to the first get",
        "ms",
        median("restore_first_get_ms"),
        goal=faster(5),
    ),
    _store(
        "restore_all_ms",
        "restore to all rows read",
        "ms",
        median("restore_all_ms"),
        goal=faster(1.5),
    ),
    _store("scan_us", "full scan", "us/row", median("scan_us_per_row"), goal=faster(1.5)),
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
        goal=at_most(1.5, "1.5"),
    ),
    _store(
        "snapshot_commit",
        "commit p99 during a snapshot, against without",
        "x",
        commit_snapshot_ratio,
        compare=False,
        chart=False,
        goal=at_most(1.5, "1.5"),
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
        goal=faster(1),
    ),
    _scan(
        "ordered_scan_us",
        "scan in order",
        "us/row",
        median_in("store", "ordered_scan_us_per_row"),
        goal=faster(1),
    ),
    _scan(
        "eviction_ms",
        "eviction of the 500 oldest rows",
        "ms",
        median_in("store", "eviction_ms"),
        goal=faster(1),
    ),
    _scan(
        "eviction_growth",
        "the same, against a state of a tenth",
        "x",
        grown_state,
        compare=False,
        goal=at_most(1.5, "1.5"),
    ),
    _scan("disk_scan_us", "full scan, all on disk", "us/row", median_in("disk", "scan_us_per_row")),
    _scan(
        "disk_scan_raw",
        "full scan, all on disk, against RocksDB's iterator",
        "x",
        disk_ratio("scan_us_per_row", "raw_scan_us_per_row"),
        compare=False,
        goal=at_most(1.2, "1.2"),
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
        goal=at_most(1.2, "1.2"),
    ),
    _rate("aggregation", "aggregation", faster(1.6, 1.15, rate=True)),
    _rate("join", "stream-stream join", faster(1.3, rate=True)),
    _rate("session", "session window", faster(1.3, rate=True)),
    _rate("pandas", "transformWithStateInPandas, two state calls a row"),
    Measure(
        name="partitions200",
        title="batch of 1k rows, 200 partitions",
        unit="ms",
        level="query",
        extract=batch_ms("partitions200"),
        goal=faster(1.5),
    ),
    *bench_python_measures.MEASURES,
    *_rescale(8, 16, faster(25), faster(1), faster(5)),
    *_rescale(16, 8, faster(25), faster(1), faster(5)),
    *_rescale(8, 12, faster(3)),
    *_rescale(8, 7, faster(1)),
    Measure(
        name="rescale_8_to_16_written",
        title="rescale 8 to 16: bytes written, of the state",
        unit="%",
        level="rescale",
        extract=written_share("8_to_16"),
        compare=False,
        chart=False,
        goal=at_most(1.0, "1 %"),
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
        goal=at_most(0.3, "0.3 s"),
    ),
    _savepoint("create_ms", "savepoint of a running query", "ms", goal=at_most(1000, "1 000 ms")),
    _savepoint("create_written_bytes", "savepoint: bytes written", "KiB", scale=1 / 1024),
    _savepoint("fork_ms", "fork", "ms", goal=at_most(300, "300 ms")),
    _savepoint("fork_written_bytes", "fork: bytes written", "KiB", scale=1 / 1024),
    _savepoint(
        "stop_ms",
        "stop with savepoint, after the running batch",
        "ms",
        goal=at_most(500, "500 ms"),
    ),
    _savepoint(
        "export_rows_per_s",
        "savepoint as Parquet",
        "rows/s",
        rate=True,
        goal=at_least(1_000_000, "1 000 000 rows/s"),
    ),
    _savepoint("restore_ms", "restore of a savepoint", "ms"),
    _savepoint(
        "first_batch_ms",
        "restore of a savepoint, or restart: to the first batch committed",
        "ms",
        goal=replace(faster(1 / 1.2), text="1.2 of Spark's"),
        only=(),
    ),
    *(
        _savepoint(
            f"codec.{schema}_{way}_rows_per_s",
            f"{title}: {columns}, one core",
            "rows/s",
            rate=True,
            goal=at_least(1_000_000, "1 000 000 rows/s") if schema == "fixed" else None,
        )
        for schema, columns in (("fixed", "four fixed-width columns"), ("text", "those and a text"))
        for way, title in (("decode", "rows to Arrow"), ("encode", "Arrow to rows"))
    ),
)
