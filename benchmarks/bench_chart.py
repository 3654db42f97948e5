# SPDX-License-Identifier: Apache-2.0
"""Draws the chart of the docs: how many times better than Spark's RocksDB store with changelog.

It has one row for each measure, and a logarithmic axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bench_contenders import BASELINE, CONTENDERS, OURS
from benchmarks.bench_measures import MEASURES
from benchmarks.bench_report import figure, grouped, times
from benchmarks.bench_svg import FAINT, GRID, TEXT, document, text

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 920, 280, 180, 92, 30, 52
_COLOURS = {
    "millpond": "#0b6e99",
    "millpond-nofsync": "#58b0d3",
    "millpond-quarter": "#7fa650",
    "rocksdb-snapshot": "#d98a29",
    "hdfs": "#8a5aa8",
    "flink": "#d98a29",
    "flink-rocksdb": "#d98a29",
    "flink-heap": "#7fa650",
}


def svg(results: Mapping[str, Any]) -> str:
    """Return the chart as one SVG document.

    Rows are the measures that have a ratio for at least one contender.
    """
    shown = {m.name for m in MEASURES if m.chart}
    rows = [row for name, row in results["summary"].items() if name in shown]
    labels = {
        c["name"]: CONTENDERS[c["name"]].label
        for c in results["contenders"]
        if c["name"] != BASELINE
    }
    return chart(
        rows,
        labels,
        head="Times better than Spark's RocksDB store with changelog",
        title="Millpond and Spark's state stores, relative to RocksDB with changelog",
        caption=_caption(results),
    )


def chart(
    every: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    *,
    head: str,
    title: str,
    caption: str,
) -> str:
    """Return a chart of ratios as one SVG document.

    Args:
        every: the rows, as `summarise` makes them. Those without a ratio are left out.
        labels: what is shown beside the baseline, by name. Millpond has a bar, others a dot.
    """
    names = list(labels)
    rows = [row for row in every if any(n in row["times_better_than_baseline"] for n in names)]
    ratios = [
        row["times_better_than_baseline"][n]
        for row in rows
        for n in names
        if n in row["times_better_than_baseline"]
    ]
    # The axis has whole powers of two around all values, and at least a half to eight.
    low = min(-1, math.floor(math.log2(min(ratios, default=1))))
    high = max(3, math.ceil(math.log2(max(ratios, default=1))))
    height = _TOP + _ROW * len(rows) + _BOTTOM
    scale = _Scale(low, high)
    parts = [
        text(20, 28, head, size=17, weight="bold"),
        *_legend(labels),
        *_axis(scale, height, step=1 if high - low <= 9 else 2),
    ]
    for i, row in enumerate(rows):
        parts += _row(row, names, _TOP + _ROW * i + _ROW / 2, scale, striped=i % 2 == 0)
    parts.append(text(20, height - 20, caption, size=12, fill=FAINT))
    return document(title, _WIDTH, height, parts)


class _Scale:
    """Places a ratio on the logarithmic axis, from 2^low to 2^high."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def x(self, ratio: float) -> float:
        return _LEFT + (math.log2(ratio) - self.low) / (self.high - self.low) * (
            _WIDTH - _LEFT - _RIGHT
        )


def _legend(labels: Mapping[str, str]) -> list[str]:
    parts, x = [], 20.0
    for name, label in labels.items():
        mark = (
            f'<rect x="{x:.1f}" y="44" width="14" height="12"'
            if name == OURS
            else f'<circle cx="{x + 7:.1f}" cy="50" r="5.5"'
        )
        parts += [f'{mark} fill="{_COLOURS[name]}"/>', text(x + 20, 54.5, label)]
        x += 36 + 7.1 * len(label)
    return parts


def _axis(scale: _Scale, height: int, *, step: int) -> list[str]:
    parts, bottom = [], height - _BOTTOM
    for power in range(scale.low, scale.high + 1):
        if power % step:
            continue
        x, one = scale.x(2.0**power), power == 0
        label = f"{2**power}x" if power >= 0 else f"1/{2**-power}x"
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{bottom}"'
            f' stroke="{TEXT if one else GRID}" stroke-width="{1.4 if one else 1}"/>'
        )
        parts.append(text(x, _TOP - 10, label, size=11, anchor="middle", fill=FAINT))
    return parts


def _row(
    row: Mapping[str, Any], names: list[str], y: float, scale: _Scale, *, striped: bool
) -> list[str]:
    ratios = row["times_better_than_baseline"]
    parts = [text(_LEFT - 14, y + 4.5, row["title"], anchor="end")]
    if striped:
        band = (
            f'<rect x="12" y="{y - _ROW / 2:.1f}" width="{_WIDTH - 24}" height="{_ROW}"'
            ' fill="#1f2933" fill-opacity="0.04"/>'
        )
        parts.insert(0, band)
    if OURS in ratios:
        from_x, to_x = sorted((scale.x(1.0), scale.x(ratios[OURS])))
        parts.append(
            f'<rect x="{from_x:.1f}" y="{y - 8:.1f}" width="{max(to_x - from_x, 1.5):.1f}"'
            f' height="16" fill="{_COLOURS[OURS]}"/>'
        )
    parts += [
        f'<circle cx="{scale.x(ratios[n]):.1f}" cy="{y:.1f}" r="5.5" fill="{_COLOURS[n]}"'
        ' stroke="white" stroke-width="1.2"/>'
        for n in names
        if n != OURS and n in ratios
    ]
    if OURS in ratios:
        label = f"{times(ratios[OURS])}  ({figure(row['median'][OURS])} {row['unit']})"
        parts.append(text(_WIDTH - 18, y + 4.5, label, anchor="end", weight="bold"))
    return parts


def _caption(results: Mapping[str, Any]) -> str:
    host, versions = results["host"], results["versions"]
    keys = grouped(results["store_sizes"]["keys"])
    return (
        f"{keys} keys; medians of {results['repetitions']}; Spark {versions['spark']},"
        f" {host['cores']} cores; Millpond fsyncs every commit, Spark's stores do not. Right of 1x"
        " is better."
    )
