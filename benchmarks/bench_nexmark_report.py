# SPDX-License-Identifier: Apache-2.0
"""Figures, tables and page of `bench_nexmark`. `write` alone does I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench_chart, bench_env
from benchmarks.bench_contenders import BASELINE, CONTENDERS, HEAP_PEER, OURS
from benchmarks.bench_env import REPOSITORY
from benchmarks.bench_nexmark_events import AUCTIONS, BIDS, EPOCH, EVENTS, PERSONS
from benchmarks.bench_nexmark_flink import FLINKS
from benchmarks.bench_nexmark_queries import QUERIES
from benchmarks.bench_report import figure, grouped, table, times

LABELS = {name: CONTENDERS[name].label for name in (OURS, BASELINE, HEAP_PEER)}
LABELS |= {name: flink.label for name, flink in FLINKS.items()}
_FLINK = next(iter(FLINKS))  # with state in RocksDB
WARMUP = 2  # batches that do not count: classes are loaded, code is compiled
_PAGE = REPOSITORY / "docs" / "benchmarks-nexmark.md"
_IMAGES = REPOSITORY / "docs" / "img"
SETTINGS = {
    "memory": "State in memory",
    "recovery": "Recovery after a kill",
    "budget": "State of eight times the memory",
    "source": "Events from memory",
}
# The parts of the page: the default number of events has some of its own. Flink can be measured
# apart from Spark's stores.
SECTIONS = SETTINGS | {
    "large": "Ten million events in memory",
    "large-flink": "Ten million events in memory, beside Flink",
    "large-recovery": "Recovery with ten million events",
}
_SHARES = {"person": PERSONS, "auction": AUCTIONS, "bid": BIDS}
_MIB = 1 << 20


def events_per_s(raw: Mapping[str, Any], query: str) -> float:
    """Return how many events of the kinds that the query reads it takes in a second."""
    share = sum(_SHARES[kind] for kind in QUERIES[query].kinds) / EPOCH
    if "runs" in raw:
        return float(raw["events"] * share / (raw["runs"][-1]["ms"] / 1000))
    batches = raw["batches"][WARMUP:]
    seconds = sum(b["trigger_ms"] for b in batches) / 1000
    return float(raw["per_file"] * share * len(batches) / seconds)


def p99_ms(raw: Mapping[str, Any], _query: str) -> float:
    """Return the duration of a batch that 99 % do not exceed: below 100 batches, the longest.

    Flink: of a checkpoint.
    """
    if "runs" in raw:
        sorted_ms = sorted(raw["runs"][-1]["checkpoint_ms"])
    else:
        sorted_ms = sorted(b["trigger_ms"] for b in raw["batches"][WARMUP:])
    return float(sorted_ms[-(len(sorted_ms) // 100) - 1])


def stored_bytes(raw: Mapping[str, Any], _query: str) -> float:
    """Return the bytes of the state's files at the end. Flink: of the largest checkpoint."""
    if "runs" in raw:
        return float(max(raw["runs"][-1]["checkpoint_bytes"]))
    return float(raw["stored_bytes"])


def backlog_events(raw: Mapping[str, Any], _query: str) -> float:
    """Return how many events a query had left when it was killed: since its last commit."""
    if "runs" in raw:
        return float(raw["backlog_events"])
    return float(raw["backlog_files"] * raw["per_file"])


def _first_batch_ms(raw: Mapping[str, Any], _query: str) -> float | None:
    return None if "runs" in raw else float(raw["batches"][0]["trigger_ms"])


Extract = Callable[[Mapping[str, Any], str], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One table.

    Attributes:
        title: the head of its first column.
        ratios: it has columns with Millpond beside each of the others.
        rate: more is better.
    """

    title: str
    of: Extract
    ratios: bool = False
    rate: bool = False


RATE = Figure("events/s", events_per_s, ratios=True, rate=True)
_CAUGHT_UP = Figure(
    "until all files are worked off, s", lambda raw, _: float(raw["caught_up_s"]), ratios=True
)
_P99 = Figure("p99 of a batch, ms", p99_ms)
_RESIDENT = Figure("resident memory, MiB", lambda raw, _: raw["peak_rss_bytes"] / _MIB)
_STORED = Figure("stored state, MiB", lambda raw, query: stored_bytes(raw, query) / _MIB)
_STREAM = (RATE, _P99, _RESIDENT, _STORED)
# The first one is what the setting's chart shows.
FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "memory": _STREAM,
    "recovery": (
        _CAUGHT_UP,
        Figure("until the first batch is committed, s", lambda raw, _: raw["first_commit_s"]),
        Figure("that batch, ms", _first_batch_ms),
        Figure("backlog, events", backlog_events),
        _RESIDENT,
    ),
    "budget": _STREAM,
    "source": (RATE, _P99, _RESIDENT),
}


def _values(cell: Mapping[str, Any], of: Extract) -> dict[str, float]:
    found = ((name, of(raw, cell["query"])) for name, raw in cell["contenders"].items())
    return {name: value for name, value in found if value is not None}


def _ratio(what: Figure, value: float, other: float) -> float:
    """Return how many times better a value is than another."""
    return value / other if what.rate else other / value


def tables(results: Mapping[str, Any]) -> str:
    """Return the figures of all settings as Markdown."""
    parts = []
    for setting, head in SETTINGS.items():
        if _cells(results, setting):
            parts += [f"### {head}", tables_of(results, setting)]
    return "\n\n".join(parts)


def tables_of(results: Mapping[str, Any], setting: str) -> str:
    """Return the figures of one setting as Markdown."""
    cells = _cells(results, setting)
    names = [n for n in LABELS if any(n in c["contenders"] for c in cells)]
    parts = [_table(cells, names, what) for what in FIGURES[setting]]
    return "\n\n".join([*([_budgets(cells)] if setting == "budget" else []), *parts])


def _budgets(cells: list[Mapping[str, Any]]) -> str:
    heads = ["", "state in Millpond's memory, MiB", "budget, MiB", "all in memory, events/s"]
    rows = []
    for cell in cells:
        raw = cell["in_memory"]
        state_mib = max(batch["state_memory_bytes"] for batch in raw["batches"]) / _MIB
        row = [_head(cell["query"]), figure(state_mib), figure(cell["budget_mib"])]
        rows.append([*row, figure(events_per_s(raw, cell["query"]))])
    return table(heads, rows)


def _cells(results: Mapping[str, Any], setting: str) -> list[Mapping[str, Any]]:
    """Return the cells of a setting in the queries' order, in whatever order they were measured."""
    cells = [c for c in results["cells"].values() if c["setting"] == setting]
    return sorted(cells, key=lambda cell: [*QUERIES].index(cell["query"]))


def _head(query: str) -> str:
    return f"{query}, {QUERIES[query].title}"


def _table(cells: list[Mapping[str, Any]], names: list[str], what: Figure) -> str:
    peers = [n for n in names if n != OURS] if what.ratios and OURS in names else []
    title = what.title
    if what is _P99 and FLINKS.keys() & set(names):
        title = "p99 of a batch, of Flink's checkpoints, ms"
    heads = [title, *(["rows of state"] if what.ratios else []), *(LABELS[n] for n in names)]
    heads += [f"Millpond / {LABELS[n]}" for n in peers]
    rows = []
    for cell in cells:
        values = _values(cell, what.of)
        row = [_head(cell["query"])]
        if what.ratios:
            row.append(grouped(max(raw.get("state_rows") or 0 for raw in _raws(cell))))
        row += [figure(values.get(n)) for n in names]
        for peer in peers:
            both = OURS in values and peer in values
            row.append(times(_ratio(what, values[OURS], values[peer]) if both else None))
        rows.append(row)
    return table(heads, rows)


def _raws(cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*cell["contenders"].values()]


def disagreements(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each query for which Spark's stores do not give as many rows."""
    lines = []
    for name, cell in results["cells"].items():
        found = {n: raw["rows_out"] for n, raw in cell["contenders"].items() if "rows_out" in raw}
        if len(set(found.values())) > 1:
            lines.append(f"{name}: rows of the result differ: {found}")
    return lines


def told(results: Mapping[str, Any]) -> str:
    """Return what the program prints: the figures, and what is wrong with them."""
    return "\n".join([tables(results), *disagreements(results)])


def chart(results: Mapping[str, Any], setting: str) -> str:
    """Return the chart of a setting: its first figure, relative to Spark's RocksDB store. Where
    that was not measured, relative to Flink with RocksDB.
    """
    what = FIGURES[setting][0]
    base, base_label = BASELINE, "Spark's RocksDB store"
    if not _has(results, setting, BASELINE):
        base, base_label = _FLINK, LABELS[_FLINK]
    head, _, unit = what.title.rpartition(", ")
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for cell in _cells(results, setting):
        values = _values(cell, what.of)
        if base not in values:
            continue
        seen.update(values)
        ratios = {n: _ratio(what, v, values[base]) for n, v in values.items() if n != base}
        rows.append(
            {
                "title": _head(cell["query"]),
                "unit": unit,
                "median": values,
                "times_better_than_baseline": ratios,
            }
        )
    host, versions = results["host"], results["versions"]
    measured = f"{head or unit}, times those of" if what.rate else f"{head}, times faster than"
    return bench_chart.chart(
        rows,
        {n: label for n, label in LABELS.items() if n in seen and n != base},
        head=f"Nexmark: {measured} {base_label}",
        title=f"Nexmark, {SETTINGS[setting].lower()}",
        caption=f"{grouped(results['plan']['events'])} events; Spark {versions['spark']},"
        f" {host['cores']} cores, one run. Right of 1x is better.",
    )


def _where(results: Mapping[str, Any], setting: str, source: Path) -> str:
    host, versions, plan = results["host"], results["versions"], results["plan"]
    dirty = " with changes" if results["dirty"] else ""
    batches = plan["events"] // plan["per_file"]
    every = [raw for cell in _cells(results, setting) for raw in _raws(cell)]
    flink = next((f" Flink {raw['flink']}," for raw in every if "flink" in raw), "")
    text = (
        f"Measured from {results['time_utc']} on, {host['cores']} cores of {host['cpu']},"
        f" {host['memory_bytes'] / 2**30:.0f} GiB, {host['file_system']}; Spark"
        f" {versions['spark']},{flink} {versions['java']}; commit"
        f" `{results['commit'][:12]}`{dirty}; load average at the start"
        f" {host['load_average_1m']}. {grouped(plan['events'])} events in {batches} batches"
    )
    if FIGURES[setting][0] is RATE:
        text += f", of which {WARMUP} do not count."
        text += " Flink counts all events of its second run." if flink else ""
        text += " One process each. "
    else:
        batch = next(raw["committed"] for raw in every if "committed" in raw)
        text += f", of which {batch} were committed when the processes were killed. "
    text += (
        "Before, each contender's results were compared with those of the batch."
        if results["checked"]
        else "The results were not compared with those of the batch in this run."
    )
    named = source.resolve()
    raw = named.relative_to(REPOSITORY) if named.is_relative_to(REPOSITORY) else None
    link = f"Raw results:\n[`{raw}`](../{raw})." if raw else ""
    return textwrap.fill(text, 100) + "\n" + link


def section(results: Mapping[str, Any], setting: str) -> str:
    """Return the part of the page that a setting's results are of."""
    if results["plan"]["events"] < EVENTS or setting not in ("memory", "recovery"):
        return setting
    if setting == "recovery":
        return "large-recovery"
    return "large" if _has(results, setting, BASELINE) else "large-flink"


def _has(results: Mapping[str, Any], setting: str, contender: str) -> bool:
    return any(contender in cell["contenders"] for cell in _cells(results, setting))


def write(results: Mapping[str, Any], source: Path) -> None:
    """Write the parts of the page that the results are of, and a chart for each setting."""
    for setting in SETTINGS:
        if _cells(results, setting):
            name = section(results, setting)
            (_IMAGES / f"nexmark-{name}.svg").write_text(chart(results, setting))
            image = f"![{SECTIONS[name]}](img/nexmark-{name}.svg)"
            text = [_where(results, setting, source), image, tables_of(results, setting)]
            bench_env.replace_generated(_PAGE, *marks(name), "\n\n".join(text))


def marks(name: str) -> tuple[str, str]:
    """Return the lines of the page between which the results of a part of it are."""
    begin = f"<!-- {name}: written by benchmarks/bench_nexmark.py, do not edit -->"
    return begin, f"<!-- end of {name} -->"
