# SPDX-License-Identifier: Apache-2.0
"""Turns raw results into a table: the measures, their sums, their text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.bench_contenders import (
    BASELINE,
    CONTENDERS,
    HEAP_PEER,
    KEY_AND_VALUE_BYTES,
    OURS,
    OURS_QUARTER,
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
    extract: Callable[[Mapping[str, Any]], float | None]
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


def percentile(values: Sequence[float], q: float) -> float:
    """Return the nearest-rank percentile, `q` in (0, 1]. Of few values it is their maximum."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _median(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda r: statistics.median(r[name]) if r.get(name) else None


def _number(*path: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], float | None]:
    def extract(result: Mapping[str, Any]) -> float | None:
        value: Any = result
        for step in path:
            value = value.get(step) if value is not None else None
        return None if value is None else float(value) * scale

    return extract


def _p99(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda r: percentile(r[name], 0.99) if r.get(name) else None


def _snapshot_ratio(result: Mapping[str, Any]) -> float | None:
    busy, quiet = result.get("get_put_during_snapshot_us"), result["update_latency_us"]
    return busy["p99"] / quiet["p99"] if busy else None


def _commit_snapshot_ratio(result: Mapping[str, Any]) -> float | None:
    busy = result.get("commit_during_snapshot_ms")
    return percentile(busy, 0.99) / percentile(result["update_commit_ms"], 0.99) if busy else None


def _gc_ms(result: Mapping[str, Any]) -> float | None:
    return float(result["gc_ms"]["load"] + result["gc_ms"]["update"])


def _rows_per_s(scenario: str) -> Callable[[Mapping[str, Any]], float | None]:
    def extract(result: Mapping[str, Any]) -> float | None:
        batches = _measured(result, scenario)
        return (
            statistics.median(b["rows"] * 1000.0 / b["trigger_ms"] for b in batches)
            if batches
            else None
        )

    return extract


def _batch_ms(scenario: str) -> Callable[[Mapping[str, Any]], float | None]:
    def extract(result: Mapping[str, Any]) -> float | None:
        batches = _measured(result, scenario)
        return statistics.median(float(b["trigger_ms"]) for b in batches) if batches else None

    return extract


def _measured(result: Mapping[str, Any], scenario: str) -> list[dict[str, Any]]:
    found = result.get(scenario)
    return list(found["batches"][found["warmup"] :]) if found else []


def _store(
    name: str,
    title: str,
    unit: str,
    extract: Callable[[Mapping[str, Any]], float | None],
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
    extract = _rows_per_s(name)
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
            extract=_number(case, field),
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
    extract = _number(*name.split("."), scale=scale)
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


def _written_share(case: str) -> Callable[[Mapping[str, Any]], float | None]:
    def extract(result: Mapping[str, Any]) -> float | None:
        found = result.get(case)
        return 100.0 * found["written_bytes"] / found["state_bytes"] if found else None

    return extract


def _disk_ratio(name: str, raw: str) -> Callable[[Mapping[str, Any]], float | None]:
    def extract(result: Mapping[str, Any]) -> float | None:
        disk = result.get("disk")
        return float(statistics.median(disk[name]) / statistics.median(disk[raw])) if disk else None

    return extract


def _grown_state(result: Mapping[str, Any]) -> float | None:
    found = result["store"]
    return float(
        statistics.median(found["eviction_ms"]) / statistics.median(found["eviction_of_a_tenth_ms"])
    )


def _scan(
    name: str,
    title: str,
    unit: str,
    extract: Callable[[Mapping[str, Any]], float | None],
    *,
    compare: bool = True,
    goal: Goal | None = None,
) -> Measure:
    return replace(
        _store(name, title, unit, extract, compare=compare, chart=False, goal=goal), level="scan"
    )


def _of(part: str, name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda r: statistics.median(r[part][name]) if part in r else None


_written_with_snapshots = _number("bytes_per_batch_with_snapshots", scale=1 / 1024)

MEASURES: tuple[Measure, ...] = (
    _store("get_put_us", "get+put", "us", _median("update_us_per_op"), goal=_faster(5, 1.5)),
    Measure(
        name="get_put_quarter_us",
        title="get+put, `memory.budget` a quarter of the state",
        unit="us",
        level="store",
        extract=_median("update_us_per_op"),
        goal=_faster(1.5, ours=OURS_QUARTER),
        ours=OURS_QUARTER,
        only=(OURS_QUARTER, BASELINE),
        chart=False,
    ),
    _store(
        "get_put_p99_us", "get+put, p99", "us", _number("update_latency_us", "p99"), chart=False
    ),
    _store("commit_ms", "commit", "ms", _median("update_commit_ms"), goal=_faster(4)),
    _store("commit_p99_ms", "commit, p99", "ms", _p99("update_commit_ms"), chart=False),
    _store(
        "load_us",
        "load of new keys, with commits",
        "us/key",
        _number("load_us_per_key"),
        goal=_faster(3),
    ),
    _store(
        "reopen_ms",
        "re-open of the last version",
        "ms",
        _median("update_reopen_ms"),
        goal=_at_most(0.5, "0.5 ms"),
    ),
    _store("rollback_ms", "rollback by one version", "ms", _median("rollback_ms")),
    _store(
        "restore_first_get_ms",
        "restore to the first get",
        "ms",
        _median("restore_first_get_ms"),
        goal=_faster(5),
    ),
    _store(
        "restore_all_ms",
        "restore to all rows read",
        "ms",
        _median("restore_all_ms"),
        goal=_faster(1.5),
    ),
    _store("scan_us", "full scan", "us/row", _median("scan_us_per_row"), goal=_faster(1.5)),
    _store(
        "bytes_per_batch",
        "durable bytes a batch",
        "KiB",
        _number("bytes_per_batch", scale=1 / 1024),
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
        _snapshot_ratio,
        compare=False,
        chart=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _store(
        "snapshot_commit",
        "commit p99 during a snapshot, against without",
        "x",
        _commit_snapshot_ratio,
        compare=False,
        chart=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _store(
        "memory_mib",
        "resident memory of the state",
        "MiB",
        _number("memory", "state_bytes", scale=2**-20),
        goal=Goal(text="RocksDB + 1.5x data", met=_memory_met),
    ),
    _store(
        "children_mib",
        "beside it, child processes (the agent)",
        "MiB",
        _number("memory", "after_update", "children", scale=2**-20),
        compare=False,
        chart=False,
    ),
    _store(
        "gc_ms", "garbage collection, load and updates", "ms", _gc_ms, compare=False, chart=False
    ),
    _scan(
        "prefix_scan_us",
        "prefix scan of ten rows",
        "us",
        _of("store", "prefix_scan_us"),
        goal=_faster(1),
    ),
    _scan(
        "ordered_scan_us",
        "scan in order",
        "us/row",
        _of("store", "ordered_scan_us_per_row"),
        goal=_faster(1),
    ),
    _scan(
        "eviction_ms",
        "eviction of the 500 oldest rows",
        "ms",
        _of("store", "eviction_ms"),
        goal=_faster(1),
    ),
    _scan(
        "eviction_growth",
        "the same, against a state of a tenth",
        "x",
        _grown_state,
        compare=False,
        goal=_at_most(1.5, "1.5"),
    ),
    _scan("disk_scan_us", "full scan, all on disk", "us/row", _of("disk", "scan_us_per_row")),
    _scan(
        "disk_scan_raw",
        "full scan, all on disk, against RocksDB's iterator",
        "x",
        _disk_ratio("scan_us_per_row", "raw_scan_us_per_row"),
        compare=False,
        goal=_at_most(1.2, "1.2"),
    ),
    _scan(
        "disk_prefix_scan_us",
        "prefix scan of ten rows, all on disk",
        "us",
        _of("disk", "prefix_scan_us"),
    ),
    _scan(
        "disk_prefix_scan_raw",
        "prefix scan, all on disk, against RocksDB's iterator",
        "x",
        _disk_ratio("prefix_scan_us", "raw_prefix_scan_us"),
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
        extract=_batch_ms("partitions200"),
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
        extract=_written_share("8_to_16"),
        compare=False,
        chart=False,
        goal=_at_most(1.0, "1 %"),
    ),
    Measure(
        name="rescale_8_to_16_work",
        title="rescale 8 to 16: work beyond the start of the process",
        unit="s",
        level="rescale",
        extract=_number("8_to_16", "work_ms", scale=1 / 1000),
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


def summarise(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return unit, figures of all repetitions, median and ratios, by measure and contender.

    The ratios are those to the baseline and to the peer on the heap.

    Args:
        results: as `run.py` writes them. Each level has a list of raw process results by
            contender.
    """
    summary: dict[str, Any] = {}
    for measure in MEASURES:
        repetitions = {
            name: [v for v in (measure.extract(r) for r in raws) if v is not None]
            for name, raws in results.get(measure.level, {}).items()
            if not measure.only or name in measure.only
        }
        medians = {
            name: statistics.median(values) for name, values in repetitions.items() if values
        }
        if not medians:
            continue
        met = measure.goal.met(medians, results["store_sizes"]["keys"]) if measure.goal else None
        summary[measure.name] = {
            "title": measure.title,
            "unit": measure.unit,
            "level": measure.level,
            "higher_is_better": measure.higher_is_better,
            "repetitions": {name: values for name, values in repetitions.items() if values},
            "median": medians,
            "times_better_than_baseline": _ratios(measure, medians, BASELINE),
            "times_better_than_heap": _ratios(measure, medians, HEAP_PEER),
            "ours": measure.ours,
            "goal": measure.goal.text if measure.goal else None,
            "goal_met": met,
        }
    return summary


def _ratios(measure: Measure, medians: Mapping[str, float], peer: str) -> dict[str, float]:
    found = {name: measure.ratio(medians, name, peer) for name in medians}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def disagreements(query: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a line for each batch in which the contenders' states differ in size.

    Then nobody may compare their times.
    """
    seen: dict[tuple[str, int], tuple[str, int]] = {}
    lines = []
    for contender, raws in query.items():
        for raw in raws:
            for scenario, run in raw.items():
                for batch in run["batches"]:
                    first, rows = seen.setdefault(
                        (scenario, batch["batch"]), (contender, batch["state_rows"])
                    )
                    if rows != batch["state_rows"]:
                        lines.append(
                            f"{scenario}, batch {batch['batch']}: {batch['state_rows']} state rows"
                            f" in {contender}, {rows} in {first}"
                        )
    return lines


def rescale_disagreements(rescale: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a line for each case after which the contenders' states differ in size."""
    seen: dict[str, tuple[str, int]] = {}
    lines = []
    for contender, raws in rescale.items():
        for raw in raws:
            for case, run in raw.items():
                first, rows = seen.setdefault(case, (contender, run["state_rows"]))
                if rows != run["state_rows"]:
                    lines.append(
                        f"rescale {case}: {run['state_rows']} state rows in {contender}, {rows} in"
                        f" {first}"
                    )
    return lines


def savepoint_disagreements(savepoint: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a line if the contenders' states differ in size after the first batch of a restore."""
    rows = {raw["state_rows"] for raws in savepoint.values() for raw in raws}
    return [f"savepoint: state rows {sorted(rows)}"] if len(rows) > 1 else []


def figure(value: float | None) -> str:
    """Return three significant digits, with thousands in groups; a dash for None."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{round(value, 3 - len(str(int(value)))):,.0f}".replace(",", " ")
    if value == 0:
        return "0"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.2g}"


def times(value: float | None) -> str:
    """Return a ratio as `3.4x`; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


def markdown(results: Mapping[str, Any], *, goals: bool) -> str:
    """Return the table in Markdown: a row for each measure, a column for each contender.

    Millpond's ratios follow, and with `goals` the goals.
    """
    summary = results["summary"]
    names = [c["name"] for c in results["contenders"]]
    ours = OURS if OURS in names else None
    heads = ["measure", "unit", *(CONTENDERS[n].label for n in names)]
    if ours:
        heads += ["against RocksDB, changelog", "against HDFSBacked"]
    if goals:
        heads += ["goal", "met"]
    rows = [["durable when `commit` returns", "", *(CONTENDERS[n].durability for n in names)]]
    rows[0] += [""] * (len(heads) - len(rows[0]))
    for row in summary.values():
        cells = [row["title"], row["unit"], *(figure(row["median"].get(n)) for n in names)]
        if ours:
            peers = ("times_better_than_baseline", "times_better_than_heap")
            cells += [times(row[p].get(row.get("ours", ours))) for p in peers]
        if goals:
            cells += [row["goal"] or "", {True: "yes", False: "NO", None: ""}[row["goal_met"]]]
        rows.append(cells)
    return "\n".join(
        [_line(heads), _line(["---", "---", *(["---:"] * (len(heads) - 2))]), *map(_line, rows)]
    )


def plain(results: Mapping[str, Any]) -> str:
    """Return the same table with aligned columns for a terminal, and all repetitions' figures."""
    cells = [
        [c.strip().replace("`", "") for c in line.strip("|").split("|")]
        for line in markdown(results, goals=True).splitlines()
    ]
    del cells[1]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    table = "\n".join(
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
    raw = [
        f"{row['title']} ({row['unit']}): "
        + "; ".join(
            f"{name} {', '.join(figure(v) for v in values)}"
            for name, values in row["repetitions"].items()
        )
        for row in results["summary"].values()
    ]
    return f"{table}\n\nEach repetition (raw durations are in the JSON):\n" + "\n".join(raw)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
