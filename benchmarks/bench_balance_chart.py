# SPDX-License-Identifier: Apache-2.0
"""Draws the batches of a cluster that grows: a panel for each contender. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.bench_svg import FAINT, GRID, TEXT, document, text

_WIDTH, _LEFT, _RIGHT, _TOP, _HALF, _GAP = 920, 70, 20, 62, 78, 64
_COLOURS = ("#0b6e99", "#d98a29", "#8a5aa8", "#5c9e5c", "#b24c4c", "#7b8794", "#c2a83e")


def svg(results: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return one SVG document: above, the time of each batch; below, tasks by executor."""
    panel = 2 * _HALF + 8
    height = _TOP + (panel + _GAP) * len(results)
    most_ms = max(b["ms"] for r in results.values() for b in r["batches"][1:])
    parts = [
        text(
            20,
            28,
            "A cluster grows from one executor to four, and loses one",
            size=17,
            weight="bold",
        ),
        text(
            20,
            46,
            "above: time of a batch; below: tasks with state, a colour for each executor",
            fill=FAINT,
        ),
    ]
    for i, (name, result) in enumerate(results.items()):
        parts += _panel(result, labels[name], _TOP + (panel + _GAP) * i, most_ms)
    return document("Balance: batches over time", _WIDTH, height, parts)


def _panel(result: Mapping[str, Any], label: str, top: float, most_ms: float) -> list[str]:
    batches = result["batches"][1:]  # the first starts Python workers and agents
    first, last = batches[0]["batch"], batches[-1]["batch"]
    step = (_WIDTH - _LEFT - _RIGHT) / (last - first + 1)
    base = top + 20 + _HALF
    low = base + 8 + _HALF
    parts = [text(_LEFT, top + 12, label, weight="bold")]
    for ms in (0, most_ms / 2, most_ms):
        y = base - _HALF * ms / most_ms
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{GRID}" fill="none"/>')
        parts.append(text(_LEFT - 8, y + 4, f"{ms / 1000:.1f} s", size=11, anchor="end"))
    executors = sorted({e for b in batches for e in b["tasks"]}, key=int)
    for b in batches:
        x, width = _LEFT + step * (b["batch"] - first), max(1.0, step - 2)
        high = _HALF * min(1.0, b["ms"] / most_ms)
        parts.append(_bar(x, base - high, width, high, TEXT))
        count, y = sum(b["tasks"].values()), low
        for n, executor in enumerate(executors):
            part = _HALF * b["tasks"].get(executor, 0) / count
            y -= part
            if part:
                parts.append(_bar(x, y, width, part, _COLOURS[n % len(_COLOURS)]))
    for mark, words in (("joined", "three join"), ("killed", "one is killed")):
        x = _LEFT + step * (result["marks"][mark] + 1 - first) - 1
        if mark == "killed" or len(batches[1]["tasks"]) == 1:
            parts.append(
                f'<path d="M{x:.1f} {top + 16:.1f}V{low:.1f}" stroke="{FAINT}" fill="none"'
                ' stroke-dasharray="4 3"/>'
            )
            parts.append(text(x + 3, low + 15, words, size=11, fill=FAINT))
    return parts


def _bar(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'
    )
