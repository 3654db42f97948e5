"""The rows that a user gives `edit`, as record batches, whatever type they have.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.chunks import fitting_rows


def record_batches(rows: Any) -> Iterator[Any]:
    """Yield the rows as `pyarrow.RecordBatch`es.

    Args:
        rows: a record batch, a table, a DataFrame of pandas, or several of them; None: no row.
    Raises: InvalidInputError: INVALID_ARGUMENT: they are none of these.
    """
    if rows is None:
        return
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=fitting_rows(rows.num_rows, rows.nbytes))
    elif type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        yield from record_batches(_of_pandas(rows))
    elif isinstance(rows, list | tuple | Iterator | pa.RecordBatchReader):
        for part in rows:
            if isinstance(part, list | tuple):
                raise _no_rows(part)
            yield from record_batches(part)
    else:
        raise _no_rows(rows)


def _of_pandas(frame: Any) -> Any:
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


def _no_rows(what: object) -> InvalidInputError:
    return InvalidInputError(
        f"{type(what).__name__} where rows are wanted: a pyarrow record batch or table, a pandas"
        " DataFrame, or several of them",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Return what the function got, changed: a pyarrow.RecordBatch with key and value.",
    )
