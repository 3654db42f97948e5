# SPDX-License-Identifier: Apache-2.0
"""Turns raw results into a table: the sums of the measures, and their text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bench_contenders import BASELINE, CONTENDERS, HEAP_PEER, OURS
from benchmarks.bench_goals import Measure
from benchmarks.bench_measures import MEASURES


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
        return grouped(round(value, 3 - len(str(int(value)))))
    if value == 0:
        return "0"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.2g}"


def grouped(value: float) -> str:
    """Return a whole number with thousands in groups."""
    return f"{value:,.0f}".replace(",", " ")


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
    return table(heads, rows, words=2)


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


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a table in Markdown. The first `words` columns are words, the others are numbers."""
    rule = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))
