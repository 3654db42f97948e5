"""All query shapes that tests compare with Spark's RocksDB store, and their table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from integration import join_cases, operator_cases, python_state_cases, scala_state_cases
from integration.cases import Case
from integration.depth import deep

SHAPES: list[Case] = [
    *operator_cases.CASES,
    *join_cases.CASES,
    *python_state_cases.CASES,
    *scala_state_cases.CASES,
]


# One of each physical operator of Spark's. Joins of the formats 3 and 4: test_joins.py and
# test_migrating.py. Python's operators: test_python_transport.py and test_python_apply.py.
_QUICK = {
    "agg-update-odd-keys",
    "agg-window-append",
    "global-update",
    "streamline-update",
    "dedupe-odd-keys",
    "dedupe-within-watermark",
    "sessions-append",
    "join-left",
    "flat-map-update",
    "scala-event-time",
    "global-limit",
    "agg-avro",
}


def to_compare() -> list[Any]:
    """Return all shapes, for `parametrize`. All but one of each physical operator are deep."""
    assert {case.name for case in SHAPES} >= _QUICK
    return [case if case.name in _QUICK else deep(case) for case in SHAPES]


_COLUMNS = ("operator", "shape", "mode", "format", "encoding", "batches", "rows", "result")


def result(case: Case, outcome: str) -> str:
    """Return the table's word for pytest's `outcome` of a case."""
    if outcome != "passed":
        return "DIFFERENT"
    if not case.refused:
        return "equal"
    return "refused by both" if case.later is None else "refused by both, then equal"


def named(name: str) -> Case:
    """Return the shape of that name."""
    return next(case for case in SHAPES if case.name == name)


def table(rows: Iterable[tuple[Case, int, int, str]]) -> list[str]:
    """Return the table's lines. A row: case, compared batches, output rows, pytest's outcome."""
    cells: list[Sequence[str]] = [_COLUMNS]
    last = None
    for case, batches, count, outcome in rows:
        operator = case.operator if case.operator != last else ""
        last = case.operator
        numbers = (str(batches), str(count)) if batches else ("-", "-")
        spark = (case.mode, str(case.checkpoint_format), case.encoding)
        cells.append((operator, case.name, *spark, *numbers, result(case, outcome)))
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def from_reports(reports: Iterable[Any]) -> list[str]:
    """Return the table of the shapes that pytest ran, in the order of `SHAPES`.

    Empty if it ran none.
    """
    found: dict[str, tuple[Case, int, int, str]] = {}
    for report in reports:
        for name, shape in getattr(report, "user_properties", ()):
            if name == "shape" and (report.when == "call" or report.outcome != "passed"):
                case = named(
                    shape["case"]
                )  # by its name: a worker of the test run sends only plain values
                found[case.name] = (case, shape["batches"], shape["rows"], report.outcome)
    return table(found[case.name] for case in SHAPES if case.name in found) if found else []
