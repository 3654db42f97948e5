"""Gives rows of values other columns. Needs the extra `tools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.nested import fitted
from millpond.rows.readable import scalar_of
from millpond.spark.column_changes import Column


def with_columns(values: Any, columns: Sequence[Column], target: Any) -> Any:
    """Return values with other columns.

    Args:
        values: a `pyarrow.StructArray`, or a `ListArray` of lists of such rows.
        columns: the new columns.
        target: the Arrow type of one new row.
    Raises: InvalidInputError: INVALID_ARGUMENT: a value does not fit the type of its column.
    """
    if pa.types.is_list(values.type):
        rows = with_columns(values.values, columns, target)
        return pa.ListArray.from_arrays(values.offsets, rows)
    made = []
    for column, field in zip(columns, target, strict=True):
        if column.source is None:
            value = _value(column, field.type)
            count = len(values)
            made.append(pa.repeat(value, count) if value.is_valid else pa.nulls(count, field.type))
            continue
        old = values.field(column.source)
        if column.inner is not None:
            made.append(with_columns(old, column.inner, field.type))
        else:
            made.append(fitted(old, field.type, column.name, exact=True))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(made, fields=list(target), mask=mask)


def check_values(columns: Sequence[Column], target: Any) -> None:
    """Raise InvalidInputError: INVALID_ARGUMENT if a value does not fit its new column."""
    for column, field in zip(columns, target, strict=True):
        if column.source is None:
            _value(column, field.type)
        elif column.inner is not None:
            check_values(column.inner, field.type)


def _value(column: Column, kind: Any) -> Any:
    """Return the value of a new column. A text is parsed if the column is none of texts."""
    value = column.value
    try:
        if isinstance(value, str) and pa.types.is_binary(kind):
            return pa.scalar(bytes.fromhex(value), kind)
        return scalar_of(value, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as e:
        raise InvalidInputError(
            f"column {column.name!r}: the value is no {kind}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                "Write numbers as 0 or 1.5, times as 2026-01-31T12:00:00+00:00 (of the type"
                " timestamp_ntz without an offset), bytes in hexadecimal digits; null, or no"
                " value, stands for null."
            ),
        ) from e
