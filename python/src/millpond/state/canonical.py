"""Canonical savepoints: a Parquet file for each column family of each store. Every program that
reads Parquet can read them. Needs the extra `tools`.

    key_group     int32, null where it is not known
    key, value    structs with the columns of Spark's schema; absent if the schema has no columns.
                  `value` is a list if the column family has lists of values
    key_bytes     the key as stores hold it, without its key group and column family
    value_bytes   the value as stores hold it

Rows are in the order of their physical keys, so by key group. A restore reads the bytes.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import FormatError, NotFoundError, UnsupportedError
from millpond.format import table_names
from millpond.format.checksums import file_crc32
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.model.partition_keys import PartitionKeyRule
from millpond.model.physical_key import PHYSICAL_PREFIX_BYTES
from millpond.query.image import Image, operator_info
from millpond.query.index import FileEntry, SavepointIndex, TableEntry, damaged
from millpond.query.row_source import (
    UNKNOWN_GROUP,
    NativeRows,
    Rows,
    StoreRows,
    leading_group,
)
from millpond.rows.arrow_types import struct_type
from millpond.rows.chunks import row_batches
from millpond.spark.state_schemas import FamilySchema
from millpond.state.codec import (
    binary_array,
    check_supported,
    decode_keys,
    decode_lists,
    decode_values,
    prefixes,
    without,
)
from millpond.state.partitioning import key_groups
from millpond.state.selection import every_rule
from millpond.storage import Storage
from millpond.storage.local import translate_restored
from millpond.storage.stored_file import stored_path


class AppendedFile:
    """A file that is open only during each write: there may be thousands of them."""

    closed = False

    def __init__(self, path: str) -> None:
        self._path, self._size_bytes = path, 0
        open(path, "xb").close()

    def write(self, data: Any) -> int:
        with open(self._path, "ab") as file:
            written = file.write(data)
        self._size_bytes += written
        return written

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        return

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one column family, as arrays.

    groups: numpy array of integers (-1: not known).
    keys, values: Arrow arrays of bytes.
    """

    family: ColumnFamily
    groups: Any
    keys: Any
    values: Any


def parts(source: NativeRows, store: StoreRows) -> Iterator[Part]:
    """Yield the rows of one store in parts; each part is of one column family."""
    known = {family.id: family for family in store.families}
    for chunk in source.chunks(store):
        physical, values = (binary_array(column) for column in zip(*chunk, strict=True))
        # Columns: slot, column family.
        places = prefixes(physical, PHYSICAL_PREFIX_BYTES).view(">u2").astype(np.uint16)
        numbers = np.unique(places[:, 1]).tolist()
        if len(numbers) == 1 and not any(
            known[number].spans_key_groups for number in numbers if number in known
        ):
            # Most stores have one column family: take all rows at once.
            if numbers[0] in known:
                keys = without(physical, PHYSICAL_PREFIX_BYTES)
                yield Part(
                    known[numbers[0]], _groups(places[:, 0], source.key_groups), keys, values
                )
            continue
        for rows in source.split(chunk, store):
            yield _part(rows)


def _groups(slots: Any, groups: KeyGroups) -> Any:
    """Return the key group of each slot; -1: that of no group."""
    found, which = np.unique(slots, return_inverse=True)
    known = [leading_group(slot, groups) for slot in found.tolist()]
    return np.array(known, dtype=np.int32)[which]


def _part(rows: Rows) -> Part:
    return Part(
        rows.family,
        np.array(rows.groups, np.int32),
        binary_array(rows.keys),
        binary_array(rows.values),
    )


class TableWriters:
    """The tables of some stores, written into a directory. A table's file is begun with its first
    rows.

    Raises (all methods): UnavailableError: LOCAL_DISK_FULL. FormatError: rows do not fit the schema
    of the state.
    """

    def __init__(self, image: Image, groups: KeyGroups, directory: str) -> None:
        self._image, self._groups, self._directory = image, groups, directory
        self._schemas: dict[tuple[int, str], dict[str, tuple[FamilySchema, PartitionKeyRule]]] = {}
        self._writers: dict[tuple[StoreId, str], _TableWriter] = {}

    def write(self, store: StoreId, rows: Rows | Part) -> None:
        """Append rows of one column family."""
        part = _part(rows) if isinstance(rows, Rows) else rows
        try:
            writer = self._writers.get((store, part.family.name))
            if writer is None:
                os.makedirs(self._directory, exist_ok=True)
                path = os.path.join(self._directory, f"{uuid.uuid4().hex}.parquet")
                schema, rule = self._schema(store, part.family.name)
                writer = _TableWriter(path, part.family, schema, rule, self._groups)
                self._writers[store, part.family.name] = writer
            writer.write(part)
        except OSError as e:
            raise translate_restored(e, f"writing {self._directory}") from e

    def _schema(
        self, store: StoreId, family: str
    ) -> tuple[FamilySchema | None, PartitionKeyRule | None]:
        place = (store.operator, store.name)
        if place not in self._schemas:
            info = operator_info(self._image, store.operator)
            self._schemas[place] = every_rule(self._image, store.operator, info, store.name)
        return self._schemas[place].get(family, (None, None))

    def has(self, store: StoreId, family: str) -> bool:
        """Return whether rows of this column family of this store were written."""
        return (store, family) in self._writers

    def discard(self, store: StoreId, family: str) -> None:
        """Delete what was written of this column family of this store."""
        writer = self._writers.pop((store, family), None)
        if writer is not None:
            writer.close()
            os.unlink(writer.path)

    def close(self) -> None:
        """Finish all files. Idempotent."""
        try:
            for writer in self._writers.values():
                writer.close()
        except OSError as e:
            raise translate_restored(e, f"writing {self._directory}") from e

    def tables(self, store: StoreRows) -> list[TableEntry]:
        """Return the entries of one store in the index: a table for each of its column families."""
        result = []
        for family in store.families:
            writer = self._writers.get((store.store, family.name))
            result.append(
                TableEntry(
                    store=store.store,
                    family=family,
                    rows=writer.rows if writer is not None else 0,
                    key=table_names.table_key(store.store, family.name)
                    if writer is not None
                    else None,
                    scalable=store.scalable,
                    reason=store.reason,
                )
            )
        return result

    def files(self) -> list[tuple[str, FileEntry]]:
        """Return all files that were written: path, entry in the index. Call it after `close`."""
        result = []
        for (store, family), writer in self._writers.items():
            size_bytes, crc32 = os.path.getsize(writer.path), file_crc32(writer.path)
            key = table_names.table_key(store, family)
            result.append((writer.path, FileEntry(key=key, size_bytes=size_bytes, crc32=crc32)))
        return result


class _TableWriter:
    """One Parquet file."""

    def __init__(
        self,
        path: str,
        family: ColumnFamily,
        schema: FamilySchema | None,
        rule: PartitionKeyRule | None,
        groups: KeyGroups,
    ) -> None:
        self.path, self.rows = path, 0
        self._multi, self._rule, self._groups = family.multi, rule, groups
        if schema is not None:
            check_supported(family, schema)
        self._schema = schema
        fields = [pa.field("key_group", pa.int32())]
        if self._schema is not None:
            if self._schema.key.fields:
                fields.append(pa.field("key", struct_type(self._schema.key)))
            if self._schema.value.fields:
                value = struct_type(self._schema.value)
                fields.append(pa.field("value", pa.list_(value) if self._multi else value))
        fields += [pa.field("key_bytes", pa.binary()), pa.field("value_bytes", pa.binary())]
        self._fields = pa.schema(fields)
        # Rows hardly repeat: a dictionary costs time and saves no space.
        sink = pa.PythonFile(AppendedFile(path), mode="w")
        self._writer = pq.ParquetWriter(
            sink, self._fields, compression="zstd", use_dictionary=False
        )

    def write(self, part: Part) -> None:
        """Append the rows of a part."""
        columns: dict[str, Any] = {"key_bytes": part.keys, "value_bytes": part.values}
        keys = None
        if self._schema is not None:
            keys = columns["key"] = decode_keys(
                part.keys, self._schema, place_bytes=0, encoding=part.family.encoding
            )
            decode, values = (
                (decode_lists, part.values.to_pylist())
                if self._multi
                else (decode_values, part.values)
            )
            columns["value"] = decode(values, self._schema, encoding=part.family.encoding)
        columns["key_group"] = self._key_groups(part, keys)
        arrays = [columns[name] for name in self._fields.names]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._fields))
        self.rows += len(part.keys)

    def _key_groups(self, part: Part, keys: Any) -> Any:
        if not (part.groups == UNKNOWN_GROUP).any():
            return _numbers(part.groups)
        if keys is not None and self._schema is not None and self._rule is not None:
            try:
                groups = key_groups(
                    keys, self._schema.key, self._rule, self._groups.max_parallelism
                )
                return _numbers(groups)
            except UnsupportedError:
                # Only readers use this column. A restore on as many partitions does not need it.
                self._rule = None
        return pa.nulls(len(part.keys), pa.int32())

    def close(self) -> None:
        """Finish the file. Idempotent."""
        self._writer.close()


def _numbers(array: Any) -> Any:
    """Return an Arrow array of 32-bit integers.

    Not by `pa.array`: given numpy arrays, it imports pandas if that is installed.
    """
    return pa.Array.from_buffers(
        pa.int32(), len(array), [None, pa.py_buffer(np.ascontiguousarray(array, np.int32))]
    )


class CanonicalRows:
    """The rows of a canonical savepoint, read from its tables."""

    def __init__(self, storage: Storage, index: SavepointIndex) -> None:
        self._storage, self._index = storage, index

    @cached_property
    def _tables(self) -> dict[StoreId, list[TableEntry]]:
        found: dict[StoreId, list[TableEntry]] = {}
        for table in self._index.tables:
            found.setdefault(table.store, []).append(table)
        return found

    def stores(self) -> list[StoreRows]:
        return [
            StoreRows(
                store=store,
                families=tuple(table.family for table in tables),
                scalable=tables[0].scalable,
                reason=tables[0].reason,
            )
            for store, tables in sorted(self._tables.items())
        ]

    def rows(self, store: StoreRows) -> Iterator[Rows]:
        for table in self._tables.get(store.store, ()):
            yield from self.table_rows(table)

    def table_rows(self, table: TableEntry) -> Iterator[Rows]:
        """Yield the rows of one table.

        Raises: FormatError: SAVEPOINT_DAMAGED. UnavailableError: the storage, or the local disk.
        """
        key, found = table.key, 0
        if key is None:
            return
        entry = self._index.files[key]
        try:
            with (
                scratch_directory("import") as directory,
                stored_path(self._storage, key, os.path.join(directory, "table.parquet")) as path,
            ):
                if os.path.getsize(path) != entry.size_bytes or file_crc32(path) != entry.crc32:
                    raise damaged(f"{key}: its check sum does not match")
                for rows in _read(path, table):
                    found += len(rows.keys)
                    yield rows
        except NotFoundError as e:
            raise damaged(f"{key} is not there") from e
        if found != table.rows:
            raise damaged(f"{key} has {found} rows, expected {table.rows}")

    @property
    def key_groups(self) -> KeyGroups:
        """The key groups of what is read."""
        image = self._index.image
        if image.max_parallelism is None or image.key_group_base is None:
            raise FormatError("the savepoint does not say its key groups")
        return KeyGroups(image.max_parallelism, image.key_group_base)


def _read(path: str, table: TableEntry) -> Iterator[Rows]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in row_batches(file, ("key_group", "key_bytes", "value_bytes")):
                groups = batch.column("key_group").fill_null(UNKNOWN_GROUP).to_pylist()
                yield Rows(
                    table.family,
                    groups,
                    batch.column("key_bytes").to_pylist(),
                    batch.column("value_bytes").to_pylist(),
                )
    except (OSError, pa.ArrowException, KeyError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # of the operating system, not of Arrow: the table may be whole
        raise damaged(f"{table.key} cannot be read: {e}") from e
