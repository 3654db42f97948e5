#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a time to live costs, and a simulated day of ever-new keys with and without one.

`benchmarks/bench_ttl.py`: some three minutes. Draws `docs/img/ttl.svg` unless the run is quick.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from benchmarks.bench_contenders import CONTENDERS, OURS
from benchmarks.bench_env import REPOSITORY, run_program
from benchmarks.bench_store import run_bench
from benchmarks.bench_svg import FAINT, GRID, document, text

_CHART = REPOSITORY / "docs" / "img" / "ttl.svg"
_TTL_MS = 4 * 3600 * 1000
_COLOURS = {"off": "#d98a29", "on": "#0b6e99"}
_LABELS = {"off": "without", "on": "with a time to live of 4 hours"}


# Processes, each by the operator whose rows end. Which of two stores lies where in memory makes
# more of a difference than what is measured, so they take turns.
_TURNS = (1, 0, 1, 0, 1, 0)


def spec(*, quick: bool, on_operator: int, day: bool) -> dict[str, Any]:
    """Return the sizes: names are those of TtlBench.scala."""
    return {
        "on_operator": on_operator,
        "keys": 5_000 if quick else 1_000_000,
        "load_batch": 5_000 if quick else 100_000,
        "ops": 500 if quick else 20_000,
        "update_batches": 4 if quick else 80,
        "restores": 1 if quick else 3,
        "ttl_ms": 24 * 3600 * 1000,
        "day_batches": (48 if quick else 288) if day else 0,
        "day_keys": 50 if quick else 5_000,
        "day_old": 20 if quick else 2_000,
        "day_ttl_ms": _TTL_MS,
        "seed": 7,
    }


def measure(work: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Return the raw result of each process; the first has the day. Raises: BenchError."""
    classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
    return [
        run_bench(
            spec(quick=quick, on_operator=on_operator, day=number == 0),
            CONTENDERS[OURS].conf,
            heap_mib=2048,
            classes=classes,
            jar=bench_env.millpond_jar(None),
            work_dir=work / f"{OURS}-{number}",
            timeout_s=900,
        )
        for number, on_operator in enumerate(_TURNS[: 2 if quick else None])
    ]


def summary(raw: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return medians over all processes; of the ratio of get+put also the least and the most."""
    found: dict[str, float] = {}
    for name in ("get_put_{}_us", "commit_{}_ms", "open_{}_ms", "restore_{}_ms"):
        for side in ("off", "on"):
            full = name.format(side)
            found[full] = statistics.median(value for one in raw for value in one[full])
    ratios = [
        statistics.median(
            on / off for on, off in zip(one["get_put_on_us"], one["get_put_off_us"], strict=True)
        )
        for one in raw
    ]
    found |= {
        "get_put_ratio": statistics.median(ratios),
        "get_put_ratio_least": min(ratios),
        "get_put_ratio_most": max(ratios),
    }
    for side in ("off", "on"):
        day = raw[0][f"day_{side}"]
        count = len(day["rows"])
        late = slice(count * 10 // 24, None)  # keys of six hours come again, and stay four hours
        rows = day["rows"][late]
        third = len(rows) // 3
        ms = day["ms"][late]
        found |= {
            f"day_{side}_rows_growth": max(rows) / min(rows),
            f"day_{side}_ms_growth": statistics.median(ms[-third:]) / statistics.median(ms[:third]),
            f"day_{side}_ms": statistics.median(ms),
            f"day_{side}_last_rows": rows[-1],
            f"day_{side}_memory_mib": day["memory_bytes"][-1] / 2**20,
        }
    return found


def svg(raw: Mapping[str, Any]) -> str:
    """Return the chart of the day: rows above, times of batches below."""
    width, left, right, high = 820, 80, 20, 150
    parts = [text(20, 28, "A day of ever-new keys, dropDuplicates", size=17, weight="bold")]
    for number, side in enumerate(("off", "on")):
        x = 20 + 110 * number
        parts.append(text(x, 48, _LABELS[side], fill=_COLOURS[side], weight="bold"))
    panels = (("rows", "rows in the store", 1.0), ("ms", "time of a batch, ms", 1.0))
    for number, (name, label, scale) in enumerate(panels):
        top = 84 + number * (high + 50)
        most = max(max(raw[f"day_{side}"][name][1:]) for side in _COLOURS) * scale
        parts.append(text(left, top - 8, label, fill=FAINT))
        for part in (0.0, 0.5, 1.0):
            y = top + high * (1 - part)
            parts.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="{GRID}" fill="none"/>')
            parts.append(text(left - 8, y + 4, f"{most * part:,.0f}", size=11, anchor="end"))
        for side, colour in _COLOURS.items():
            values = raw[f"day_{side}"][name][1:]
            step = (width - left - right) / (len(values) - 1)
            points = " ".join(
                f"{left + i * step:.1f},{top + high * (1 - value / most):.1f}"
                for i, value in enumerate(values)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        for hour in range(0, 25, 4):
            at = left + (width - left - right) * hour / 24
            parts.append(text(at, top + high + 16, f"{hour} h", size=11, anchor="middle"))
    return document("Rows and times of batches over a day", width, 84 + 2 * (high + 50), parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 2 if something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="whether it runs, not how fast")
    parser.add_argument("--out", type=Path, help="results")
    given = parser.parse_args(arguments)

    def measured(work: Path) -> dict[str, Any]:
        raw = measure(work, quick=given.quick)
        if not given.quick:
            _CHART.write_text(svg(raw[0]))
        return {"quick": given.quick, "raw": raw, "summary": summary(raw)}

    def render(results: Mapping[str, Any]) -> str:
        return "\n".join(f"{name:24} {value:.3f}" for name, value in results["summary"].items())

    return run_program("ttl", given.out, measured, render)


if __name__ == "__main__":
    sys.exit(main())
