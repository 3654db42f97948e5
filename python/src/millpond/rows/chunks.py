"""Cuts rows into chunks that fit memory: many small rows at a time, few large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.old_calendar import check_calendar, columns_of_old_calendar

CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
_MOST_AT_ONCE = 128
_READ_BYTES = 1024 * 1024
_TABLE_HINT = (
    "Name a Parquet file that is there, or a directory of them, with the columns key and value."
)

T = TypeVar("T")


def pair_bytes(pairs: Sequence[tuple[bytes, bytes]]) -> int:
    """Return how many bytes the keys and values have together."""
    return sum(map(len, chain.from_iterable(pairs)))


def chunks_of(
    found: Iterable[T],
    size_bytes: Callable[[Sequence[T]], int],
    *,
    rows: int = CHUNK_ROWS,
    limit_bytes: int = CHUNK_BYTES,
) -> Iterator[list[T]]:
    """Yield `found` in lists of at most `rows` entries and about `limit_bytes` bytes.

    An entry that is larger than `limit_bytes` comes alone.

    Args:
        size_bytes: returns the size of some entries together.
    """
    iterator = iter(found)
    while True:
        chunk: list[T] = []
        size, step = 0, 1
        while len(chunk) < rows and size < limit_bytes:
            part = list(islice(iterator, min(step, rows - len(chunk))))
            if not part:
                break
            chunk += part
            size += size_bytes(part)
            # Take a few at a time, even if rows are small: the next ones may be large.
            step = max(
                1,
                min(
                    (limit_bytes - size) * len(chunk) // max(1, size), len(part) * 2, _MOST_AT_ONCE
                ),
            )
        if not chunk:
            return
        yield chunk


def fitting_rows(rows: int, size_bytes: int) -> int:
    """Return how many rows to take at a time, if `rows` of them have `size_bytes` together."""
    return max(1, min(CHUNK_ROWS, rows * CHUNK_BYTES // max(1, size_bytes)))


def table_batches(path: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Return the rows of a Parquet file, or of a directory of such files, as record batches.

    Needs the extra `tools`. Times of Parquet's older type INT96 are of UTC: Spark and others write
    it for times with a zone alone. Arrow reads them as times without one.

    Args:
        columns: the columns to read. Those that a file does not have are left out. None: all.
    Raises: InvalidInputError: INVALID_ARGUMENT: a file is unreadable, or has days or times in the
        calendar of Spark's earlier versions. The iterator raises it too.
    """
    # Start-up time: pyarrow.dataset alone takes long.
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    try:
        dataset = ds.dataset(path, format="parquet")
    except (OSError, pa.ArrowException) as e:
        raise InvalidInputError(
            f"{path} cannot be read: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=_TABLE_HINT,
        ) from e

    def batches() -> Iterator[Any]:
        for name in dataset.files:
            # Not by the dataset: that reads whole row groups ahead, and counts rows, not bytes.
            try:
                with pq.ParquetFile(
                    dataset.filesystem.open_input_file(name),
                    buffer_size=_READ_BYTES,
                    coerce_int96_timestamp_unit="us",  # nanoseconds end in the year 2262
                ) as file:
                    there = file.schema_arrow.names
                    wanted = [n for n in columns if n in there] if columns is not None else there
                    older, old = _older_times(file), columns_of_old_calendar(file)
                    for batch in row_batches(file, wanted):
                        in_utc = _in_utc(batch, older)
                        check_calendar(name, in_utc, old)
                        yield in_utc
            except (OSError, pa.ArrowException) as e:
                raise InvalidInputError(
                    f"{name} cannot be read: {e}",
                    kind=ErrorKind.INVALID_ARGUMENT,
                    hint=_TABLE_HINT,
                ) from e

    return batches()


def _older_times(file: Any) -> dict[str, list[bool]]:
    """Return which inner columns of a `pyarrow.parquet.ParquetFile` are INT96, by the name of the
    outer one; none of those without such a column.
    """
    found: dict[str, list[bool]] = {}
    for number in range(len(file.schema)):
        column = file.schema.column(number)
        outer = column.path.partition(".")[0]
        found.setdefault(outer, []).append(column.physical_type == "INT96")
    return {outer: of for outer, of in found.items() if any(of)}


def _in_utc(batch: Any, older: Mapping[str, Sequence[bool]]) -> Any:
    """Return a batch whose times of these inner columns are of UTC."""
    if not older:
        return batch
    # Start-up time: pyarrow.
    import pyarrow as pa

    from millpond.rows.nested import mapped

    def column(name: str) -> Any:
        flags = iter(older.get(name, ()))  # `mapped` comes to inner columns in Parquet's order

        def zoned(inner: Any) -> Any:
            is_older = next(flags, False) and pa.types.is_timestamp(inner.type)
            return inner.cast(pa.timestamp(inner.type.unit, "UTC")) if is_older else inner

        return mapped(batch.column(name), zoned) if name in older else batch.column(name)

    names = batch.schema.names
    return pa.RecordBatch.from_arrays([column(name) for name in names], names=names)


def row_batches(file: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a `pyarrow.parquet.ParquetFile` as record batches."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        size = fitting_rows(group.num_rows, group.total_byte_size)
        yield from file.iter_batches(size, row_groups=[number], columns=list(columns))
