"""Renumbers the rows of a join: the last column of the state's key numbers the rows that share the
other columns 0, 1, 2, ... without a gap.

Rows come in any order, and memory cannot hold them all. So they go to files. Memory keeps 24 bytes
for each row: a hash of its key without the number, and its old number. When all rows are there, the
hashes tell the new numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.format import table_names
from millpond.model.ids import StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.query.image import Image
from millpond.query.row_source import UNKNOWN_GROUP, Rows
from millpond.rows.chunks import row_batches
from millpond.rows.encode import encode_rows
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Struct
from millpond.state.canonical import TableWriters

_HASH_BYTES = 16  # keys with one hash would be taken for one key; 128-bit hashes do not collide


class Family(Protocol):
    """A column family whose rows get new numbers."""

    @property
    def family(self) -> ColumnFamily: ...
    @property
    def schema(self) -> FamilySchema: ...
    def encoded_keys(self, keys: Any) -> list[bytes]: ...


class JoinRowNumbers:
    """Takes the rows of column families and gives them back with their new numbers."""

    def __init__(self, image: Image, groups: KeyGroups, directory: str) -> None:
        self._writers = TableWriters(image, groups, directory)
        self._hashes: dict[StoreId, list[Any]] = {}
        self._numbers: dict[StoreId, list[Any]] = {}
        self._names: dict[StoreId, str] = {}

    def __enter__(self) -> JoinRowNumbers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self._writers.close()

    def write(
        self, store: StoreId, family: Family, groups: Any, keys: Any, values: list[bytes]
    ) -> None:
        """Take rows of one store.

        Args:
            keys: `pyarrow.StructArray` of the type of the schema.
        """
        schema = family.schema.key
        others = Struct(schema.fields[:-1])
        columns = [keys.field(i) for i in range(len(others.fields))]
        rows = encode_rows(
            pa.StructArray.from_arrays(columns, names=others.names), others
        ).to_pylist()
        hashes = b"".join(hashlib.blake2b(row, digest_size=_HASH_BYTES).digest() for row in rows)
        self._hashes.setdefault(store, []).append(np.frombuffer(hashes, np.uint64).reshape(-1, 2))
        number = keys.field(len(others.fields))
        self._numbers.setdefault(store, []).append(
            number.fill_null(0).to_numpy(zero_copy_only=False)
        )
        self._names[store] = family.family.name
        self._writers.write(
            store, Rows(family.family, groups.tolist(), family.encoded_keys(keys), values)
        )

    def rows(self) -> Iterator[tuple[StoreId, Any, Any, list[bytes], Any]]:
        """Yield the rows, some of one store at a time. Call it after the last `write`.

        Yields: the store, key groups, keys with new numbers, values, and for each row with the
        number 0 how many rows its key has (-1 for all others).
        """
        self._writers.close()
        paths = {entry.key: path for path, entry in self._writers.files()}
        for store in sorted(self._names):
            numbers, counts = numbers_of(
                np.concatenate(self._hashes.pop(store)), np.concatenate(self._numbers.pop(store))
            )
            start = 0
            with pq.ParquetFile(paths[table_names.table_key(store, self._names[store])]) as file:
                for batch in row_batches(file, ("key_group", "key", "value_bytes")):
                    end = start + batch.num_rows
                    groups = batch.column("key_group").fill_null(UNKNOWN_GROUP).to_numpy()
                    keys, fields = batch.column("key"), list(batch.column("key").type)
                    columns = [keys.field(i) for i in range(len(fields) - 1)]
                    columns.append(pa.array(numbers[start:end]).cast(fields[-1].type))
                    keys = pa.StructArray.from_arrays(columns, fields=fields)
                    yield (
                        store,
                        groups,
                        keys,
                        batch.column("value_bytes").to_pylist(),
                        counts[start:end],
                    )
                    start = end


def numbers_of(hashes: Any, before: Any) -> tuple[Any, Any]:
    """Return the new number of each row, and for the number 0 how many rows its key has, else -1
    (pure).

    Args:
        hashes: of the key of each row.
        before: the old number of each row; it decides the order.
    """
    order = np.lexsort((before, hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(order)))
    numbers, counts = np.empty(len(order), np.int64), np.full(len(order), -1, np.int64)
    numbers[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    counts[order[starts]] = sizes
    return numbers, counts
