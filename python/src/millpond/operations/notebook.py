"""Reports that show themselves in a notebook, as plain HTML, and hand out Arrow and pandas.

The HTML has no script and nothing from the network. It sets no colour, so it reads as the rest of
the notebook does, dark or light. All that comes from a storage is escaped.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from millpond.errors import ErrorKind, UnsupportedError
from millpond.rows import require_tools

_ROWS = 100  # of a table in a notebook
_STYLE = "border-collapse: collapse; margin: 0.5em 0"
_CELL = "padding: 0.1em 0.8em 0.1em 0; text-align: {}; vertical-align: top"

Value = str | int | bool | None

TEXT, NUMBER, FLAG, TIME = "string", "int64", "bool", "timestamp"
"""Types of columns. A time is in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report.

    Args:
        name: what its rows are, in the plural.
        columns: names and types.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: Sequence[tuple[Value, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a report shows in a notebook.

    Args:
        facts: names and values that are true of the whole.
        table: what Arrow and pandas get.
        more: tables beside it.
        problems: what is wrong, a sentence each.
        newest: of a long table show the last rows, not the first ones.
    """

    title: str
    facts: Sequence[tuple[str, Value]]
    table: Table
    more: Sequence[Table] = ()
    problems: Sequence[str] = field(default=())
    newest: bool = False


class Notebook:
    """A report that shows itself in a notebook."""

    __slots__ = ()

    @abstractmethod
    def _sheet(self) -> Sheet: ...

    def _repr_html_(self) -> str:
        """Return HTML for Jupyter and its like."""
        return html_of(self._sheet())

    def to_arrow(self) -> Any:
        """Return the rows as a `pyarrow.Table`.

        Raises: UnsupportedError: UNSUPPORTED: the extra `tools` is not installed.
        """
        require_tools()
        import pyarrow as pa  # start-up time: reports come from commands without it, too

        table = self._sheet().table
        types = {TEXT: pa.string(), NUMBER: pa.int64(), FLAG: pa.bool_()}
        schema = pa.schema(
            [(name, types.get(kind, pa.timestamp("ms", "UTC"))) for name, kind in table.columns]
        )
        columns = list(zip(*table.rows, strict=True)) or [()] * len(schema)
        return pa.Table.from_arrays(
            [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)],
            schema=schema,
        )

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises: UnsupportedError: UNSUPPORTED: pandas or the extra `tools` is not installed.
        """
        table = self.to_arrow()
        try:
            import pandas  # noqa: F401
        except ImportError as e:
            raise UnsupportedError(
                "a pandas frame needs the package pandas, which is not installed",
                kind=ErrorKind.UNSUPPORTED,
                hint="Run `python -m pip install pandas`, or take to_arrow().",
            ) from e
        return table.to_pandas()


def html_of(sheet: Sheet) -> str:
    """Return a sheet as HTML (pure)."""
    return "".join(_parts(sheet))


def _parts(sheet: Sheet) -> Iterator[str]:
    yield f"<div><p><strong>{escape(sheet.title)}</strong></p>"
    if sheet.problems:
        yield "<p>Problems:</p><ul>"
        yield from (f"<li>{escape(problem)}</li>" for problem in sheet.problems)
        yield "</ul>"
    if sheet.facts:
        yield f'<table style="{_STYLE}"><tbody>'
        for name, value in sheet.facts:
            cell = _cell("td", escape(_text(value, NUMBER)), "left")
            yield f"<tr>{_cell('th', escape(name), 'left', scope='row')}{cell}</tr>"
        yield "</tbody></table>"
    for table in (sheet.table, *sheet.more):
        yield from _table(table, sheet.newest)
    yield "</div>"


def _table(table: Table, newest: bool) -> Iterator[str]:
    count = len(table.rows)
    caption = f"{count:,} {table.name}"
    if count > _ROWS:
        caption += f"; the {'last' if newest else 'first'} {_ROWS}, to_pandas() has all"
    yield f"<p>{escape(caption)}</p>"
    if not count:
        return
    yield f'<table style="{_STYLE}"><thead><tr>'
    sides = ["right" if kind == NUMBER else "left" for _, kind in table.columns]
    for (name, _), side in zip(table.columns, sides, strict=True):
        yield _cell("th", escape(name.replace("_", " ")), side, scope="col")
    yield "</tr></thead><tbody>"
    for row in table.rows[-_ROWS:] if newest else table.rows[:_ROWS]:
        yield "<tr>"
        for value, (_, kind), side in zip(row, table.columns, sides, strict=True):
            yield _cell("td", escape(_text(value, kind)), side)
        yield "</tr>"
    yield "</tbody></table>"


def _cell(element: str, content: str, side: str, *, scope: str = "") -> str:
    about = f' scope="{scope}"' if scope else ""
    return f'<{element}{about} style="{_CELL.format(side)}">{content}</{element}>'


def _text(value: Value, kind: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if kind == TIME:
        return time_text(value)
    return f"{value:,}"


def time_text(ms: int) -> str:
    """Return a time for people, from milliseconds since the epoch."""
    try:
        moment = dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{ms:,} ms"  # a stored number that is no time
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(count: int | None) -> int | None:
    """Return a count; None for -1, which says that nobody has counted."""
    return None if count == -1 else count
