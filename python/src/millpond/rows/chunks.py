"""Cuts rows into chunks that fit memory: many small rows at a time, few large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from millpond.errors import ErrorKind, InvalidInputError

CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
_MOST_AT_ONCE = 128
_READ_BYTES = 1024 * 1024

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


def table_batches(path: str, columns: Sequence[str]) -> Iterator[Any]:
    """Return the rows of a Parquet file, or of a directory of such files, as record batches.

    Needs the extra `tools`.

    Args:
        columns: the columns to read. Those that a file does not have are left out.
    Raises: InvalidInputError: INVALID_ARGUMENT: a file is unreadable. The iterator raises it too.
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
            hint="Name a Parquet file, or a directory of them, with the columns key and value.",
        ) from e

    def batches() -> Iterator[Any]:
        for name in dataset.files:
            # Not by the dataset: that reads whole row groups ahead, and counts rows, not bytes.
            try:
                with pq.ParquetFile(
                    dataset.filesystem.open_input_file(name), buffer_size=_READ_BYTES
                ) as file:
                    there = set(file.schema_arrow.names)
                    yield from row_batches(file, [column for column in columns if column in there])
            except (OSError, pa.ArrowException) as e:
                raise InvalidInputError(
                    f"{name} cannot be read: {e}",
                    kind=ErrorKind.INVALID_ARGUMENT,
                    hint=(
                        "Name a Parquet file, or a directory of them, with the columns key and"
                        " value."
                    ),
                ) from e

    return batches()


def row_batches(file: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a `pyarrow.parquet.ParquetFile` as record batches."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        size = fitting_rows(group.num_rows, group.total_byte_size)
        yield from file.iter_batches(size, row_groups=[number], columns=list(columns))
