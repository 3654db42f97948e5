# SPDX-License-Identifier: Apache-2.0
"""Figures, tables and page of `bench_nexmark`. `write` alone does I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import bench_chart, bench_env
from benchmarks.bench_contenders import BASELINE, CONTENDERS, HEAP_PEER, OURS
from benchmarks.bench_env import REPOSITORY
from benchmarks.bench_nexmark_events import AUCTIONS, BIDS, EPOCH, PERSONS
from benchmarks.bench_nexmark_flink import FLINKS
from benchmarks.bench_nexmark_queries import QUERIES
from benchmarks.bench_report import figure, grouped, table, times

LABELS = {name: CONTENDERS[name].label for name in (OURS, BASELINE, HEAP_PEER)}
LABELS |= {name: flink.label for name, flink in FLINKS.items()}
WARMUP = 2  # batches that do not count: classes are loaded, code is compiled
_PAGE = REPOSITORY / "docs" / "benchmarks-nexmark.md"
_IMAGES = REPOSITORY / "docs" / "img"
_BEGIN = "<!-- results: written by benchmarks/bench_nexmark.py, do not edit -->"
_END = "<!-- end of results -->"
_SETTINGS = {"memory": "State in memory", "budget": "State of eight times the memory"}
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


Extract = Callable[[Mapping[str, Any], str], float]
FIGURES: dict[str, tuple[str, Extract]] = {
    "events": ("events/s", events_per_s),
    "p99": ("p99 of a batch, ms", p99_ms),
    "rss": ("resident memory, MiB", lambda raw, _: raw["peak_rss_bytes"] / _MIB),
    "stored": ("stored state, MiB", lambda raw, query: stored_bytes(raw, query) / _MIB),
}


def _values(cell: Mapping[str, Any], of: Extract) -> dict[str, float]:
    return {name: of(raw, cell["query"]) for name, raw in cell["contenders"].items()}


def tables(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: for each setting rates, then the rest."""
    parts = []
    for setting, head in _SETTINGS.items():
        cells = _cells(results, setting)
        if not cells:
            continue
        names = [n for n in LABELS if any(n in c["contenders"] for c in cells)]
        parts += [f"### {head}", _rates(cells, names)]
        parts += [_figures(cells, names, what) for what in ("p99", "rss", "stored")]
    return "\n\n".join(parts)


def _cells(results: Mapping[str, Any], setting: str) -> list[Mapping[str, Any]]:
    """Return the cells of a setting in the queries' order, in whatever order they were measured."""
    cells = [c for c in results["cells"].values() if c["setting"] == setting]
    return sorted(cells, key=lambda cell: [*QUERIES].index(cell["query"]))


def _head(query: str) -> str:
    return f"{query}, {QUERIES[query].title}"


def _rates(cells: list[Mapping[str, Any]], names: list[str]) -> str:
    peers = [n for n in names if n != OURS] if OURS in names else []
    heads = ["events/s", "rows of state", *(LABELS[n] for n in names)]
    heads += [f"Millpond / {LABELS[n]}" for n in peers]
    rows = []
    for cell in cells:
        values = _values(cell, events_per_s)
        state = max(raw.get("state_rows") or 0 for raw in cell["contenders"].values())
        row = [_head(cell["query"]), grouped(state), *(figure(values.get(n)) for n in names)]
        for peer in peers:
            both = OURS in values and peer in values
            row.append(times(values[OURS] / values[peer] if both else None))
        rows.append(row)
    return table(heads, rows)


def _figures(cells: list[Mapping[str, Any]], names: list[str], what: str) -> str:
    title, of = FIGURES[what]
    if what == "p99" and FLINKS.keys() & set(names):
        title = "p99 of a batch, of Flink's checkpoints, ms"
    rows = []
    for cell in cells:
        values = _values(cell, of)
        rows.append([_head(cell["query"]), *(figure(values.get(n)) for n in names)])
    return table([title, *(LABELS[n] for n in names)], rows)


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
    """Return the chart of a setting: events/s relative to Spark's RocksDB store."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for cell in _cells(results, setting):
        values = _values(cell, events_per_s)
        if BASELINE not in values:
            continue
        seen.update(values)
        ratios = {n: v / values[BASELINE] for n, v in values.items() if n != BASELINE}
        rows.append(
            {
                "title": _head(cell["query"]),
                "unit": "events/s",
                "median": values,
                "times_better_than_baseline": ratios,
            }
        )
    host, versions = results["host"], results["versions"]
    return bench_chart.chart(
        rows,
        {n: label for n, label in LABELS.items() if n in seen and n != BASELINE},
        head="Nexmark: events/s, times those of Spark's RocksDB store",
        title=f"Nexmark, {_SETTINGS[setting].lower()}",
        caption=f"{grouped(results['plan']['events'])} events; Spark {versions['spark']},"
        f" {host['cores']} cores, one run. Right of 1x is better.",
    )


def _where(results: Mapping[str, Any], source: Path) -> str:
    host, versions, plan = results["host"], results["versions"], results["plan"]
    dirty = " with changes" if results["dirty"] else ""
    batches = plan["events"] // plan["per_file"]
    every = [raw for cell in results["cells"].values() for raw in cell["contenders"].values()]
    flink = next((f" Flink {raw['flink']}," for raw in every if "flink" in raw), "")
    text = (
        f"Measured from {results['time_utc']} on, {host['cores']} cores of {host['cpu']},"
        f" {host['memory_bytes'] / 2**30:.0f} GiB, {host['file_system']}; Spark"
        f" {versions['spark']},{flink} {versions['java']}; commit"
        f" `{results['commit'][:12]}`{dirty}."
        f" {grouped(plan['events'])} events in {batches} batches, of which {WARMUP} do not count."
        + (" Flink counts all events of its second run." if flink else "")
        + " One process each. "
    )
    named = source.resolve()
    raw = named.relative_to(REPOSITORY) if named.is_relative_to(REPOSITORY) else None
    link = f"Raw results:\n[`{raw}`](../{raw})." if raw else ""
    return textwrap.fill(text, 100) + "\n" + link


def write(results: Mapping[str, Any], source: Path) -> None:
    """Write the page's generated part, and a chart for each setting."""
    parts = [_where(results, source), tables(results)]
    for setting in _SETTINGS:
        if _cells(results, setting):
            (_IMAGES / f"nexmark-{setting}.svg").write_text(chart(results, setting))
            parts.insert(-1, f"![Events a second](img/nexmark-{setting}.svg)")
    bench_env.replace_generated(_PAGE, _BEGIN, _END, "\n\n".join(parts))
