"""The rows that a user gives `edit`, as record batches, whatever type they have.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.chunks import fitting_rows


def record_batches(rows: Any, kinds: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the rows as `pyarrow.RecordBatch`es.

    Args:
        rows: a record batch, a table, a DataFrame of pandas, or several of them; None: no row.
        kinds: the Arrow types that the columns `key` and `value` are to have.
    Raises: InvalidInputError: INVALID_ARGUMENT: they are none of these; or a DataFrame has a NaN in
        a column of floating point numbers.
    """
    if rows is None:
        return
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=fitting_rows(rows.num_rows, rows.nbytes))
    elif type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        yield from record_batches(_of_pandas(rows, kinds), kinds)
    elif isinstance(rows, list | tuple | Iterator | pa.RecordBatchReader):
        for part in rows:
            if isinstance(part, list | tuple):
                raise _no_rows(part)
            yield from record_batches(part, kinds)
    else:
        raise _no_rows(rows)


def _of_pandas(frame: Any, kinds: Mapping[str, Any]) -> Any:
    for name, kind in kinds.items():
        # Columns of another type tell a NaN from a null.
        if _may_be_nan(kind) and str(frame.dtypes.get(name)) == "object":
            for value in frame[name]:
                _refuse_nan(value, kind, name)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as e:
        raise InvalidInputError(
            f"the DataFrame cannot be taken over: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                "Columns of maps, and of values of several types, are for pyarrow: return a record"
                " batch."
            ),
        ) from e


def _may_be_nan(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_may_be_nan(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _may_be_nan(kind.key_type) or _may_be_nan(kind.item_type)
    if pa.types.is_list(kind):
        return _may_be_nan(kind.value_type)
    return bool(pa.types.is_floating(kind))


def _refuse_nan(value: Any, kind: Any, name: str) -> None:
    """Raise InvalidInputError if a value has a NaN that is to be a number of floating point.

    To pandas it is a null as well, and Arrow would make one of it.
    """
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        for field in kind:
            _refuse_nan(value.get(field.name), field.type, f"{name}.{field.name}")
    elif pa.types.is_map(kind) and isinstance(value, list):
        for pair in value:
            for one, inner in zip(pair, (kind.key_type, kind.item_type), strict=False):
                _refuse_nan(one, inner, name)
    elif pa.types.is_list(kind) and isinstance(value, Iterable):
        for one in value:
            _refuse_nan(one, kind.value_type, name)
    elif pa.types.is_floating(kind) and isinstance(value, Real) and value != value:
        raise InvalidInputError(
            f"a DataFrame has NaN in column {name!r}: nobody can know whether it stands for null",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                "Put None where a null is meant. If NaN is meant, return"
                " pyarrow.RecordBatch.from_pylist(frame.to_dict('records'), schema=rows.schema),"
                " rows being what your function got: that keeps both."
            ),
        )


def _no_rows(what: object) -> InvalidInputError:
    return InvalidInputError(
        f"{type(what).__name__} where rows are wanted: a pyarrow record batch or table, a pandas"
        " DataFrame, or several of them",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Return what the function got, changed: a pyarrow.RecordBatch with key and value.",
    )
