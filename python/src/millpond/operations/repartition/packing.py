"""Makes changelog records of thousands of rows at once: numpy moves the bytes, not one row at a
time.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.format.changelog import Op
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.model.physical_key import PHYSICAL_PREFIX_BYTES, RESERVED_SLOT, around
from millpond.model.varint import encode_varint
from millpond.query.row_source import Rows

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_WIDE_BYTES = 512  # larger rows are copied as fast one by one
_PIECE_ROWS = 8_192  # rows that are copied at once: that takes eight times their memory


def is_wide(keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Whether rows are so large that moving many at once gains nothing."""
    return sum(map(len, keys)) + sum(map(len, values)) > _WIDE_BYTES * len(keys)


def packed_puts(
    rows: Rows,
    family: ColumnFamily,
    key_groups: KeyGroups,
    partitions: int,
) -> Iterator[tuple[int, int, memoryview]]:
    """Yield a partition, a number of rows, and the records that put them: all of one size.

    Args:
        rows: their key groups tell slots and partitions.
        family: with the number that the records get.
    """
    groups = np.asarray(rows.groups, dtype=np.int64)
    slots = _slots(key_groups)[groups]
    partition_of = groups % partitions
    key_bytes, key_at, key_data = _joined(rows.keys)
    value_bytes, value_at, value_data = _joined(rows.values)
    # Rows of one shape lie together, and among these the rows of one partition.
    shapes, shape_of = np.unique(key_bytes << 32 | value_bytes, return_inverse=True)
    order = np.lexsort((partition_of, shape_of))
    ends = np.cumsum(np.bincount(shape_of, minlength=len(shapes)))
    for number, shape in enumerate(shapes.tolist()):
        chosen = order[(ends[number - 1] if number else 0) : ends[number]]
        key_size, value_size = shape >> 32, shape & 0xFFFF_FFFF
        records, key_from, value_from = _framed(family, key_size, value_size, len(chosen))
        _copy(records, key_from, key_size, key_data, key_at[chosen])
        _copy(records, value_from, value_size, value_data, value_at[chosen])
        slot_from = key_from + (key_size if family.spans_key_groups else -PHYSICAL_PREFIX_BYTES)
        records[:, slot_from] = slots[chosen] >> 8
        records[:, slot_from + 1] = slots[chosen] & 0xFF
        counts = np.bincount(partition_of[chosen])
        at = 0
        for partition in np.flatnonzero(counts).tolist():
            count = int(counts[partition])
            yield partition, count, records[at : at + count].reshape(-1).data
            at += count


@lru_cache(maxsize=4)
def _slots(groups: KeyGroups) -> Numbers:
    return np.fromiter(
        map(groups.slot, range(groups.max_parallelism)),
        dtype=np.int64,
        count=groups.max_parallelism,
    )


def _joined(pieces: Sequence[bytes]) -> tuple[Numbers, Numbers, Bytes]:
    """Return the sizes of the pieces, where each begins, and all bytes."""
    sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    starts = np.zeros(len(pieces), dtype=np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    return sizes, starts, np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _framed(
    family: ColumnFamily, key_bytes: int, value_bytes: int, count: int
) -> tuple[Bytes, int, int]:
    """Return records without slot, key and value, one in each row; and where key and value
    begin.
    """
    lead, end = around(family, RESERVED_SLOT)
    head = bytes([Op.PUT]) + encode_varint(len(lead) + key_bytes + len(end)) + lead
    middle = end + encode_varint(value_bytes)
    template = head + bytes(key_bytes) + middle + bytes(value_bytes)
    records: Any = np.empty((count, len(template)), dtype=np.uint8)
    records[:] = np.frombuffer(template, dtype=np.uint8)
    return records, len(head), len(head) + key_bytes + len(middle)


def _copy(records: Bytes, column: int, size: int, data: Bytes, starts: Numbers) -> None:
    """Copy pieces of `size` bytes that begin at `starts` of `data` into the records at `column`."""
    if size == 0:
        return
    if len(data) % size == 0 and bool((starts % size == 0).all()):
        records[:, column : column + size] = data.reshape(-1, size)[starts // size]
        return
    within = np.arange(size)
    for at in range(0, len(starts), _PIECE_ROWS):
        found = data[starts[at : at + _PIECE_ROWS, None] + within]
        records[at : at + _PIECE_ROWS, column : column + size] = found
