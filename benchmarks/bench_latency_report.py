# SPDX-License-Identifier: Apache-2.0
"""Tables and page of `bench_latency`. `write` alone does I/O."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import bench_env, bench_latency_chart
from benchmarks.bench_contenders import BASELINE, FLINK, OURS, STATELESS
from benchmarks.bench_env import REPOSITORY
from benchmarks.bench_latency_measures import COMMIT, FIGURES, Figure
from benchmarks.bench_report import figure, grouped, table, times

LABELS = {
    OURS: "Millpond",
    BASELINE: "Spark's RocksDB store",
    STATELESS: "Spark, no state",
    FLINK: "Flink, RocksDB",
}
RUN = ("commit", "time_utc", "dirty", "host")  # what tells of which run a cell is
_WITHOUT_COMMITS = (STATELESS, FLINK)  # these commit no state
_PAGE = REPOSITORY / "docs" / "benchmarks-latency.md"
_IMAGES = REPOSITORY / "docs" / "img"
_BEGIN = "<!-- results: written by benchmarks/bench_latency.py, do not edit -->"
_END = "<!-- end of results -->"
_SOURCES = {"memory": "Records from memory", "kafka": "From Kafka to Kafka"}
_QUERIES = {"count": "group-by-count", "dedup": "`dropDuplicates`", "sessions": "sessions"}


def title(cell: Mapping[str, Any]) -> str:
    """Return a cell in words."""
    numbers = [grouped(cell[n]) for n in ("rate", "keys")]
    return f"{_QUERIES[cell['query']]}, {numbers[0]} records/s, {numbers[1]} keys"


def tables(results: Mapping[str, Any], *, goals: bool) -> str:
    """Return the figures as Markdown: a section for each source, then the commits and the goals."""
    cells = _cells(results)
    parts = []
    for source, head in _SOURCES.items():
        mine = [c for c in cells if c["cell"]["source"] == source]
        if mine:
            image = f"![Latency over time](img/latency-{source}.svg)"
            parts += [f"### {head}", _figures(mine), *([image] if not goals else [])]
    filled = [c for c in cells if c["cell"]["keys"] >= 1_000_000]
    if filled:
        parts += ["### The commit of a million changed rows", _commits(filled)]
    parts += ["### Against the goals", _goals(cells)]
    return "\n\n".join(parts)


def _cells(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cells in the order of the grid: one that is measured in parts is shown as one."""

    def place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
        what = cell["cell"]
        return tuple(_SOURCES).index(what["source"]), what["query"], -what["rate"], -what["keys"]

    return sorted(results["cells"].values(), key=place)


def run_of(results: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commit, the time and the machine of a cell, and whether there were changes.

    A file of old has some of these for all of its cells at once.
    """
    return {name: cell.get(name, results.get(name)) for name in RUN}


def _contenders(cell: Mapping[str, Any]) -> list[str]:
    return [name for name in LABELS if name in cell["contenders"]]


def _figures(cells: list[Mapping[str, Any]]) -> str:
    heads = ["ms", "", *(f.title for f in FIGURES)]
    rows = []
    for cell in cells:
        for i, name in enumerate(_contenders(cell)):
            found = cell["contenders"][name]["figures"]
            first = title(cell["cell"]) if i == 0 else ""
            rows.append([first, LABELS[name], *(figure(found[f.name]) for f in FIGURES)])
    return table(heads, rows, words=2)


def _commits(cells: list[Mapping[str, Any]]) -> str:
    heads = ["the batch that fills the state, ms of a task", "", "changed rows", "commit"]
    rows = []
    for cell in cells:
        for i, name in enumerate(n for n in _contenders(cell) if n not in _WITHOUT_COMMITS):
            found = cell["contenders"][name]
            changed = grouped(found["changed_largest"])
            value = figure(found["figures"][COMMIT.name])
            first = _SOURCES[cell["cell"]["source"]] + ", " + title(cell["cell"]) if i == 0 else ""
            rows.append([first, LABELS[name], changed, value])
    return table(heads, rows, words=2)


def _goals(cells: list[Mapping[str, Any]]) -> str:
    asked = [f for f in (*FIGURES, COMMIT) if f.goal is not None]
    heads = ["how many times better than Spark's RocksDB store"]
    heads += [f"{f.title}{' of most rows' if f is COMMIT else ''}" for f in asked]
    goals = ["goal", *(f.goal.text for f in asked if f.goal)]
    rows = [goals]
    for cell in cells:
        source = cell["cell"]["source"]
        met = [_met(cell, f) for f in asked]
        rows.append([f"{source}, {title(cell['cell'])}", *met])
    return table(heads, rows, words=1)


def _met(cell: Mapping[str, Any], asked: Figure) -> str:
    values = {
        name: found["figures"][asked.name]
        for name, found in cell["contenders"].items()
        if found["figures"][asked.name]
    }
    if asked is COMMIT and cell["cell"]["keys"] < 1_000_000:
        return ""
    met = asked.goal.met(values, cell["cell"]["keys"]) if asked.goal else None
    if met is None:
        return "-"
    return f"{times(values[BASELINE] / values[OURS])}{'' if met else ' (missed)'}"


def _where(results: Mapping[str, Any], source: Path) -> str:
    versions = results["versions"]
    cells = [c["cell"] for c in _cells(results)]
    spans = " or ".join(sorted({str(c["seconds"]) for c in cells}, key=int))
    triggers = " or ".join(sorted({str(c["trigger_s"]) for c in cells}, key=int))
    warmups = " or ".join(sorted({str(c["warmup_s"]) for c in cells}, key=int))
    runs: dict[str, list[str]] = {}
    for cell in results["cells"].values():
        one = run_of(results, cell)
        host = one["host"]
        changed = " with changes" if one["dirty"] else ""
        where = (
            f"commit `{one['commit'][:12]}`{changed}, {host['cores']} cores of {host['cpu']},"
            f" {host['memory_bytes'] / 2**30:.0f} GiB, {host['file_system']}"
        )
        runs.setdefault(where, []).append(one["time_utc"])
    measured = "; ".join(
        f"{len(at)} cell{'s' if len(at) > 1 else ''} from {min(at)} on at {where}"
        for where, at in sorted(runs.items(), key=lambda run: min(run[1]))
    )
    text = (
        f"Measured: {measured}. Spark {versions['spark']}, {versions['java']}."
        f" {spans} seconds of each cell are measured, after {warmups} seconds that do not count;"
        f" a batch takes {triggers} seconds. One process each. "
    )
    named = source.resolve()
    raw = named.relative_to(REPOSITORY) if named.is_relative_to(REPOSITORY) else None
    link = f"Raw results:\n[`{raw}`](../{raw})." if raw else ""
    return textwrap.fill(text, 100) + "\n" + link


def write(results: Mapping[str, Any], source: Path) -> None:
    """Write the page's generated part, and a chart for each source."""
    text = f"{_where(results, source)}\n\n{tables(results, goals=False)}"
    charts = {
        name: bench_latency_chart.svg(head, mine, title, LABELS)
        for name, head in _SOURCES.items()
        if (mine := [c for c in _cells(results) if c["cell"]["source"] == name])
    }
    bench_env.replace_generated(_PAGE, _BEGIN, _END, text)
    for name, chart in charts.items():
        (_IMAGES / f"latency-{name}.svg").write_text(chart)
