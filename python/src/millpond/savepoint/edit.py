"""A savepoint with other rows: `edit` writes a new one, in which one column family is what a function, or a table, makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from millpond.savepoint.copying import Progress

Function = Callable[[Any], Any]
"""From a `pyarrow.RecordBatch` with the columns `key` and `value` to one like it, with fewer or other rows; None: no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReport:
    """What `edit` did."""

    savepoint: str  # the new one
    operator: int
    store: str
    column_family: str
    rows_before: int
    rows_after: int
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def edit(
    savepoint: str | os.PathLike[str],
    new_savepoint: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    function: Function | None = None,
    table: Any = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EditReport:
    """Write a new savepoint, a canonical one, in which the state of one operator is another; all else is as it was.

    Rows pass by as record batches; `value` of a column family with lists of values is a list. What Spark keeps beside the rows (counts of
    lists, times of expiry, timers by time, numbers of a join's rows) is made anew to fit. Of the new rows a hash of the key is held in
    memory, 8 bytes, to find one that comes twice; of a join 24 bytes, to number the rows.

    Args:
        savepoint: native or canonical; it is not changed.
        new_savepoint: path or URI that does not exist yet, or is an empty directory. It is complete or absent.
        operator, store, column_family: as for `millpond.read_state`.
        function: called with every batch of rows, `key` and `value`; the rows that it returns take their place. Keys may be others.
        table: instead of `function`: a `pyarrow.Table`, or an iterable of record batches, with `key` and `value`: it takes the place of
            all rows, whatever was there.
        dry_run: do all of it but keep nothing: the report says what it would be.
        progress: called now and then: how many stores are read, and how many there are in all.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT, TARGET_NOT_EMPTY, OPERATOR_UNKNOWN; INVALID_ARGUMENT: columns that do not fit, a key twice.
        FormatError: SAVEPOINT_DAMAGED.
        UnsupportedError: UNSUPPORTED: rows that follow from those of another column family, which is to be edited instead (the hint names
            it), or the extra `tools` is not installed.
    """
    from millpond.rows import require_tools

    require_tools()
    from millpond.savepoint import editing

    return editing.edit(
        savepoint,
        new_savepoint,
        operator=operator,
        store=store,
        column_family=column_family,
        function=function,
        table=table,
        dry_run=dry_run,
        progress=progress,
    )
