"""The table of `docs/guides/changing.md`: each line names the test that proves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from integration.changes import CHANGES
from integration.changes.builds import OTHER_KEY, OTHER_VALUE

_AVRO = "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"
_TYPE = "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"
_CONFIG = "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"


@dataclass(frozen=True)
class Line:
    """A line that another module than `test_changing` proves."""

    what: str
    spark: str  # what Spark does; with `refused` only what is behind that
    millpond: str
    refused: str = ""  # Spark's error condition


_PLAN = "`plan` refuses it"
_SHOWS = "`plan` refuses it, and shows the columns"
# By the name of the case in `test_plan`.
PROCESSOR = {
    "variable-added": Line("A new state variable", "goes on: it starts empty", "nothing to do"),
    "variable-dropped": Line(
        "A state variable dropped",
        "goes on; its rows stay, and are there again if it comes back",
        "`plan` and `restore --job` warn, and name `deleteIfExists`",
    ),
    "variable-renamed": Line(
        "Another name for a state variable",
        "**starts: it is a new one, empty**; the old rows stay",
        "`plan` and `restore --job` warn",
    ),
    "value-to-list": Line("A value that becomes a list, or the like", "", _PLAN, _TYPE),
    "field-added": Line("A field more, without Avro", "", _SHOWS, OTHER_VALUE),
    "field-added-avro": Line(
        "A field more, with Avro", "goes on: it is null at first", "nothing to do"
    ),
    "field-dropped": Line("A field less, without Avro", "", _SHOWS, OTHER_VALUE),
    "field-dropped-avro": Line("A field less, with Avro", "goes on", "nothing to do"),
    "field-renamed": Line(
        "Another name for a field, without Avro",
        "goes on with the old values",
        "`plan` and `restore --job` warn: they compare names",
    ),
    "field-renamed-avro": Line(
        "Another name for a field, with Avro",
        "**starts: the new one is null, the old values are lost**",
        "`plan` and `restore --job` warn",
    ),
    "fields-in-another-order": Line(
        "Fields of one type change places, without Avro",
        "**starts: each has the values of the other**",
        "`plan` and `restore --job` warn: they compare names",
    ),
    "fields-in-another-order-avro": Line(
        "Fields of one type change places, with Avro", "goes on", "nothing to do"
    ),
    "field-wider": Line("A wider type of a field, without Avro", "", _SHOWS, OTHER_VALUE),
    "field-wider-avro": Line("A wider type of a field, with Avro", "goes on", "nothing to do"),
    "field-narrower": Line("A narrower type of a field, without Avro", "", _SHOWS, OTHER_VALUE),
    "field-narrower-avro": Line("A narrower type of a field, with Avro", "", _PLAN, _AVRO),
    "map-key-wider": Line("Another type of a map's key", "", _SHOWS, OTHER_KEY),
    "more-keys": Line("A column more in `groupBy`", "", _SHOWS, OTHER_KEY),
    "ttl-added": Line("A time to live for a variable that had none", "", _SHOWS, OTHER_VALUE),
    "ttl-dropped": Line("No time to live any more", "", _SHOWS, OTHER_VALUE),
    "timers-added": Line("Another time mode: timers where there were none", "", _PLAN, _CONFIG),
    "timers-dropped": Line("No timers any more", "", _PLAN, _CONFIG),
    "another-output-mode": Line("Another output mode", "", _PLAN, _CONFIG),
}

# By the file and the name of the test.
ELSEWHERE = {
    ("integration/test_rescale.py", "test_operator_goes_on_after_rescales"): Line(
        "`spark.sql.shuffle.partitions`",
        "ignores it, and keeps the old number",
        "[`millpond rescale`](rescaling.md) in place, `restore --partitions`",
    ),
    ("integration/test_sinks.py", "test_a_fork_and_a_restore_begin_a_log_of_their_own"): Line(
        "Another sink, or another directory of a file sink",
        "goes on; a file sink must know every batch number",
        "`restore --file-sink`; [sinks](sinks.md) tells the others",
    ),
}

_HEAD = ("| change | what Spark does | what Millpond does | test |", "|---|---|---|---|")


def operators_table() -> list[str]:
    """Return the lines on aggregations, joins, duplicates, `applyInPandasWithState`, sources."""
    rows = [_row(c.what, c.spark, c.millpond, c.name) for c in CHANGES]
    more = [
        _row(line.what, line.spark, line.millpond, name.removeprefix("test_"))
        for (_, name), line in ELSEWHERE.items()
    ]
    return [*_HEAD, *rows, *more]


def processor_table() -> list[str]:
    """Return the lines on `transformWithState`."""
    return [
        *_HEAD,
        *(
            _row(
                line.what,
                f"refuses: `{line.refused}`" if line.refused else line.spark,
                line.millpond,
                name,
            )
            for name, line in PROCESSOR.items()
        ),
    ]


def with_tables(page: str) -> str:
    """Return the page with the present tables in the place of its own, in their order."""
    out: list[str] = []
    tables: Iterable[list[str]] = iter((operators_table(), processor_table()))
    inside = False
    for line in page.splitlines():
        if line == _HEAD[0]:
            inside = True
            out += next(iter(tables))
        elif not inside or not line.startswith("|"):
            inside = False
            out.append(line)
    return "\n".join(out) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
