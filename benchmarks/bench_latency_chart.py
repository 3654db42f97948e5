# SPDX-License-Identifier: Apache-2.0
"""Draws latency over time: a panel for each cell, on a logarithmic axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.bench_svg import FAINT, GRID, document, text

_WIDTH, _LEFT, _RIGHT, _TOP, _PANEL, _GAP = 920, 70, 20, 74, 150, 52
_COLOURS = {
    "stateless": "#9a9a9a",
    "millpond": "#0b6e99",
    "rocksdb-changelog": "#d98a29",
    "flink": "#8a5aa8",
}
_POINTS = 300  # of the line of the largest values
_LOW, _HIGH = -1, 4  # powers of ten of ms


def svg(
    head: str,
    cells: Sequence[Mapping[str, Any]],
    title: Callable[[Mapping[str, Any]], str],
    labels: Mapping[str, str],
) -> str:
    """Return one SVG document."""
    height = _TOP + (_PANEL + _GAP) * len(cells) + 10
    parts = [
        text(20, 28, f"{head}: end-to-end latency over time, ms", size=17, weight="bold"),
    ]
    x = 20.0
    for name in [n for n in labels if any(n in c["contenders"] for c in cells)]:
        parts.append(f'<rect x="{x:.0f}" y="42" width="14" height="12" fill="{_COLOURS[name]}"/>')
        parts.append(text(x + 20, 53, labels[name]))
        x += 40 + 7.1 * len(labels[name])
    parts.append(text(x, 53, "strong: median; thin: largest", fill=FAINT))
    for i, cell in enumerate(cells):
        parts += _panel(cell, title(cell["cell"]).replace("`", ""), _TOP + (_PANEL + _GAP) * i)
    return document(f"{head}: latency over time", _WIDTH, height, parts)


def _panel(cell: Mapping[str, Any], title: str, top: float) -> list[str]:
    seconds = cell["cell"]["seconds"]
    base = top + 20
    parts = [text(_LEFT, top + 12, title, weight="bold")]
    for power in range(_LOW, _HIGH + 1):
        y = _y(10.0**power, base)
        parts.append(_path([(_LEFT, y), (_WIDTH - _RIGHT, y)], GRID, 1))
        parts.append(text(_LEFT - 8, y + 4, f"{10.0**power:g}", size=11, anchor="end"))
    for i in range(7):
        x = _x(i / 6)
        at = f"{seconds * i / 6:.0f} s"
        parts.append(text(x, base + _PANEL + 16, at, size=11, anchor="middle", fill=FAINT))
    for name in [n for n in _COLOURS if n in cell["contenders"]]:
        series = cell["contenders"][name]["series"]
        most = _binned(series["max_ms"], _POINTS, max)
        middle = _binned(series["p50_ms"], _POINTS // 5, median)
        parts.append(_path(_places(most, base), _COLOURS[name], 1))
        parts.append(_path(_places(middle, base), _COLOURS[name], 2.4))
    return parts


def _binned(
    values: Sequence[float | None], points: int, of: Callable[[list[float]], float]
) -> list[tuple[float, float]]:
    """Return a value for each part of the time: its middle as a share of all, and the value."""
    points = min(points, len(values))
    found = []
    for i in range(points):
        part = values[len(values) * i // points : len(values) * (i + 1) // points]
        there = [v for v in part if v is not None]
        if there:
            found.append(((i + 0.5) / points, of(there)))
    return found


def _places(values: Sequence[tuple[float, float]], base: float) -> list[tuple[float, float]]:
    return [(_x(share), _y(value, base)) for share, value in values]


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(ms: float, base: float) -> float:
    at = min(max(math.log10(max(ms, 1e-9)), _LOW), _HIGH)
    return base + _PANEL * (_HIGH - at) / (_HIGH - _LOW)


def _path(places: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"'
        ' stroke-linejoin="round"/>'
    )
