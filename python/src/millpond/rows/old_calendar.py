"""Refuses days and times that Spark wrote in the calendar of its earlier versions.

Spark 2.4 and earlier count days before 1582-10-15 by the Julian calendar, and times before 1900 by
other offsets of zones. Later ones do so with `spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY`.
The footer of a Parquet file tells it, and Spark puts the values right when it reads them. Arrow
does not look: they would be other days. Needs the extra `tools`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError

_VERSION = b"org.apache.spark.version"
# What marks a file, and since which version of Spark a file without the mark is as it says.
_MARK, _SINCE = b"org.apache.spark.legacyDateTime", (3, 0)
_INT96_MARK, _INT96_SINCE = b"org.apache.spark.legacyINT96", (3, 1)
_FIRST_DAY = -141_427  # 1582-10-15, in days since 1970
_FIRST_SECOND = -2_208_988_800  # 1900-01-01, UTC
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def columns_of_old_calendar(file: Any) -> dict[str, list[str]]:
    """Return which inner columns of a `pyarrow.parquet.ParquetFile` have days or times that Spark
    would put right, by the name of the outer one: their paths, and "" for each of the others.

    Outer columns without such ones are left out.
    """
    footer = file.metadata.metadata or {}
    found = re.match(rb"(\d+)\.(\d+)", footer.get(_VERSION, b""))
    version = (int(found[1]), int(found[2])) if found else None

    def is_old(mark: bytes, since: tuple[int, int]) -> bool:
        return mark in footer or (version is not None and version < since)

    old, old_int96 = is_old(_MARK, _SINCE), is_old(_INT96_MARK, _INT96_SINCE)
    if not (old or old_int96):
        return {}
    columns: dict[str, list[str]] = {}
    for number in range(len(file.schema)):
        column = file.schema.column(number)
        is_it = old_int96 if column.physical_type == "INT96" else old
        columns.setdefault(column.path.partition(".")[0], []).append(column.path if is_it else "")
    return {outer: paths for outer, paths in columns.items() if any(paths)}


def check_calendar(name: str, batch: Any, columns: Mapping[str, Sequence[str]]) -> None:
    """Raise an error if a batch has a day or a time that would be another one.

    Args:
        name: of the file, for messages.
        batch: a `pyarrow.RecordBatch`; times of INT96 are of UTC.
        columns: from `columns_of_old_calendar`.
    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    if not columns:
        return
    # Start-up time: pyarrow.
    from millpond.rows.nested import mapped

    for outer in batch.schema.names:
        if outer not in columns:
            continue
        paths = iter(columns[outer])  # `mapped` comes to inner columns in Parquet's order

        def look(inner: Any, paths: Any = paths) -> Any:
            path = next(paths)
            if path and _has_early(inner):
                raise _refused(name, path)
            return inner

        mapped(batch.column(outer), look)


def _has_early(array: Any) -> bool:
    # Start-up time.
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_date32(kind):
        first = _FIRST_DAY
    elif pa.types.is_timestamp(kind) and kind.tz is not None:  # the others are newer than the mark
        first = _FIRST_SECOND * _PER_SECOND[kind.unit]
    else:
        return False
    least = pc.min(array)
    return bool(least.is_valid and least.value < first)


def _refused(name: str, path: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name}: column {path!r} has days before 1582-10-15, or times before 1900-01-01, in the"
        " calendar of earlier versions of Spark: here they would be other ones",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Read the file with Spark, and write it anew with"
        " spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and"
        " spark.sql.parquet.int96RebaseModeInWrite=CORRECTED.",
    )
