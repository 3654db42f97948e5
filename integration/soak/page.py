"""Writes the table of `docs/guides/soak.md` from the raw result of a run.

Run it by `python -m integration.soak.page`.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).parent / "results" / "30-minutes.json"
PAGE = REPOSITORY / "docs" / "guides" / "soak.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def figures(result: dict[str, Any]) -> str:
    """Return the measurements of a run as Markdown."""
    before, after, bounds = result["before"], result["after"], result["bounds"]
    faults = ", ".join(f"{name} {count}" for name, count in result["faults"].items())
    run = (
        f"Commit `{result['commit']}`, seed {result['seed']}, {result['minutes']} minutes on"
        f" {result['host']}, two cores that other work shared."
    )
    work = (
        f"{result['files']} files on each of two inputs, {result['rows_in']:,} rows; driver"
        f" started {result['driver_lives']} times. Faults: {faults}."
    )
    head = (
        "| query | rows written | batch computation | missing | unexpected | changelogs,"
        " snapshots read back | problems |"
    )
    prose = textwrap.wrap(f"{run} {work}", 100, break_long_words=False, break_on_hyphens=False)
    lines = [*prose, "", head, "|---|---|---|---|---|---|---|"]
    for name, query in result["queries"].items():
        checked = query["checked"]
        lines.append(
            f"| {name} | {query['rows']:,} | {query['expected']:,} | {query['missing']} |"
            f" {query['unexpected']} | {checked['changelogs']}, {checked['snapshots']} |"
            f" {len(checked['problems'])} |"
        )
    lines += ["", "| held by | before | after | growth allowed |", "|---|---|---|---|"]
    for who in before:
        for what, name in (
            ("rss_kb", "resident memory, MiB"),
            ("files", "open files"),
            ("threads", "threads"),
        ):
            scale = 1024 if what == "rss_kb" else 1
            cells = [
                f"{number[what] / scale:.0f}" for number in (before[who], after[who], bounds[who])
            ]
            lines.append(f"| {who}: {name} | {' | '.join(cells)} |")
    lines.append(
        f"| executor: files of local RocksDBs | {before['executor']['local_files']} |"
        f" {after['executor']['local_files']} | see below |"
    )
    kinds = sorted(result["processes_before"].keys() | result["processes_after"].keys())
    for kind in kinds:
        lines.append(
            f"| processes: {kind} | {result['processes_before'].get(kind, 0)} |"
            f" {result['processes_after'].get(kind, 0)} | |"
        )
    for index, name in enumerate(("files", "bytes")):
        cells = [
            f"{result[f'checkpoint_files_and_bytes_{when}'][index]:,}"
            for when in ("before", "after")
        ]
        lines.append(f"| {name} of the three checkpoints | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


def page(text: str, result: dict[str, Any]) -> str:
    """Return the page `text` with the figures of `result` in their place."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + figures(result) + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULT.read_text())))
    sys.exit(0)
