"""Canonical savepoints: a Parquet file per column family and store, for anything that reads Parquet. Needs the extra `tools`.

    key_group     int32, null where it is not known
    key, value    structs with the columns of Spark's schema; of a column family with lists of values, `value` is a list. Left out where
                  they have no columns
    key_bytes     the key as stores hold it, without its key group and column family; value_bytes: the value as stores hold it

Rows come in the order of their places in the store: by key group. A restore takes the bytes. Source: docs/reference/format.md.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millpond import layout
from millpond.checksums import file_crc32
from millpond.errors import FormatError, UnsupportedError
from millpond.ids import StoreId
from millpond.keygroups import KeyGroups
from millpond.partition_keys import PartitionKeyRule
from millpond.rows.arrow_types import struct_type
from millpond.savepoint.image import Image
from millpond.savepoint.index import FileEntry, SavepointIndex, TableEntry, damaged
from millpond.savepoint.rewrite import rule_of
from millpond.savepoint.row_source import UNKNOWN_GROUP, NativeRows, Rows, StoreRows
from millpond.savepoint.target import Target
from millpond.state.codec import binary_array, check_supported, decode_keys, decode_values, split_lists
from millpond.state.partitioning import key_groups
from millpond.state.schema_files import FamilySchema
from millpond.state.selection import family_schemas, operator_info
from millpond.storage import Storage, open_checkpoint
from millpond.storage.local import translate

_PARALLEL_FROM_KEYS = 500_000  # below that, starting processes takes longer than it saves
_READ_ROWS = 65_536


def export(image: Image, root: str, target: Target) -> tuple[list[TableEntry], dict[str, FileEntry]]:
    """Write the tables of all stores of `image`, which is in the storage at `root`. Returns them, and their files."""
    source = NativeRows(open_checkpoint(root), image)
    stores = source.stores()
    keys = [op.keys for op in image.operators]
    many = -1 in keys or sum(keys) >= _PARALLEL_FROM_KEYS
    workers = min(os.cpu_count() or 1, len(stores)) if many else 1
    tables: list[TableEntry] = []
    files: dict[str, FileEntry] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-export-") as directory, ExitStack() as stack:
        jobs = [(root, image, store, os.path.join(directory, str(number))) for number, store in enumerate(stores)]
        results: Iterator[tuple[list[TableEntry], list[tuple[str, FileEntry]]]]
        if workers > 1:
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
            results = pool.map(_export_store, jobs)
        else:
            results = map(_export_store, jobs)
        for found, written in results:
            tables += found
            for path, entry in written:
                target.storage.put_file(entry.key, path, if_absent=True, link=True)
                files[entry.key] = entry
    return tables, files


def _export_store(job: tuple[str, Image, StoreRows, str]) -> tuple[list[TableEntry], list[tuple[str, FileEntry]]]:
    """Write the tables of one store into a directory of its own. Returns them, and their files with their paths."""
    root, image, store, directory = job
    source = NativeRows(open_checkpoint(root), image)
    writers = TableWriters(image, source.key_groups, directory)
    try:
        for rows in source.rows(store):
            writers.write(store.store, rows)
    finally:
        writers.close()
    return writers.tables(store), writers.files()


class TableWriters:
    """The tables of some stores, written into a directory; each is begun with its first rows.

    Raises (all methods): UnavailableError: LOCAL_DISK_FULL. FormatError: rows that do not fit the schema of the state.
    """

    def __init__(self, image: Image, groups: KeyGroups, directory: str) -> None:
        self._image, self._groups, self._directory = image, groups, directory
        self._schemas: dict[tuple[int, str], dict[str, tuple[FamilySchema, PartitionKeyRule]]] = {}
        self._writers: dict[tuple[StoreId, str], _TableWriter] = {}

    def write(self, store: StoreId, rows: Rows) -> None:
        """Append rows of one column family."""
        try:
            writer = self._writers.get((store, rows.family.name))
            if writer is None:
                os.makedirs(self._directory, exist_ok=True)
                path = os.path.join(self._directory, f"{len(self._writers)}.parquet")
                schema, rule = self._schema(store, rows.family.name)
                writer = _TableWriter(path, rows, schema, rule, self._groups)
                self._writers[store, rows.family.name] = writer
            writer.write(rows)
        except OSError as e:
            raise translate(e, f"writing {self._directory}", local=True) from e

    def _schema(self, store: StoreId, family: str) -> tuple[FamilySchema | None, PartitionKeyRule | None]:
        place = (store.operator, store.name)
        if place not in self._schemas:
            info = operator_info(self._image, store.operator)
            found = family_schemas(self._image, store.operator, info, store.name)
            self._schemas[place] = {s.name: (s, rule_of(info, store.name, s)) for s in found}
        return self._schemas[place].get(family, (None, None))

    def close(self) -> None:
        """Finish all files. Idempotent."""
        try:
            for writer in self._writers.values():
                writer.close()
        except OSError as e:
            raise translate(e, f"writing {self._directory}", local=True) from e

    def tables(self, store: StoreRows) -> list[TableEntry]:
        """Return what was written of one store, a table for each of its column families."""
        result = []
        for family in store.families:
            writer = self._writers.get((store.store, family.name))
            result.append(
                TableEntry(
                    store=store.store,
                    family=family,
                    rows=writer.rows if writer is not None else 0,
                    key=layout.table_key(store.store, family.name) if writer is not None else None,
                    scalable=store.scalable,
                    reason=store.reason,
                )
            )
        return result

    def files(self) -> list[tuple[str, FileEntry]]:
        """Return all files that were written: path, and what the index says of it. After `close`."""
        result = []
        for (store, family), writer in self._writers.items():
            size_bytes, crc32 = os.path.getsize(writer.path), file_crc32(writer.path)
            key = layout.table_key(store, family)
            result.append((writer.path, FileEntry(key=key, size_bytes=size_bytes, crc32=crc32)))
        return result


class _TableWriter:
    """One Parquet file."""

    def __init__(
        self,
        path: str,
        first: Rows,
        schema: FamilySchema | None,
        rule: PartitionKeyRule | None,
        groups: KeyGroups,
    ) -> None:
        self.path, self.rows = path, 0
        self._multi, self._rule, self._groups = first.family.multi, rule, groups
        self._schema = _decodable(first, schema)
        fields = [pa.field("key_group", pa.int32())]
        if self._schema is not None:
            if self._schema.key.fields:
                fields.append(pa.field("key", struct_type(self._schema.key)))
            if self._schema.value.fields:
                value = struct_type(self._schema.value)
                fields.append(pa.field("value", pa.list_(value) if self._multi else value))
        fields += [pa.field("key_bytes", pa.binary()), pa.field("value_bytes", pa.binary())]
        self._fields = pa.schema(fields)
        # Bytes of rows hardly repeat: a dictionary of them costs time and gains nothing.
        self._writer = pq.ParquetWriter(path, self._fields, compression="zstd", use_dictionary=False)

    def write(self, rows: Rows) -> None:
        """Append."""
        columns: dict[str, Any] = {
            "key_bytes": binary_array(rows.keys),
            "value_bytes": binary_array(rows.values),
        }
        keys = None
        if self._schema is not None:
            keys = columns["key"] = decode_keys(
                columns["key_bytes"], self._schema, place_bytes=0, encoding=rows.family.encoding
            )
            columns["value"] = self._values(rows, columns["value_bytes"], self._schema)
        columns["key_group"] = self._key_groups(rows, keys)
        arrays = [columns[name] for name in self._fields.names]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._fields))
        self.rows += len(rows.keys)

    def _values(self, rows: Rows, values: Any, schema: FamilySchema) -> Any:
        if not self._multi:
            return decode_values(values, schema, encoding=rows.family.encoding)
        single, counts = split_lists(rows.values)
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + count)
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), decode_values(single, schema, encoding=rows.family.encoding)
        )

    def _key_groups(self, rows: Rows, keys: Any) -> Any:
        if UNKNOWN_GROUP not in rows.groups:
            return pa.array(rows.groups, pa.int32())
        if keys is not None and self._schema is not None and self._rule is not None:
            try:
                groups = key_groups(keys, self._schema.key, self._rule, self._groups.max_parallelism)
                return pa.array(groups, pa.int32())
            except UnsupportedError:
                self._rule = None  # the column is there for readers; a restore on as many partitions needs it not
        return pa.nulls(len(rows.keys), pa.int32())

    def close(self) -> None:
        """Finish the file. Idempotent."""
        self._writer.close()


def _decodable(rows: Rows, schema: FamilySchema | None) -> FamilySchema | None:
    if schema is None:
        return None
    check_supported(rows.family, schema)
    return schema


class CanonicalRows:
    """Rows of the tables of a canonical savepoint."""

    def __init__(self, storage: Storage, index: SavepointIndex) -> None:
        self._storage, self._index = storage, index

    def stores(self) -> list[StoreRows]:
        by_store: dict[Any, list[TableEntry]] = {}
        for table in self._index.tables:
            by_store.setdefault(table.store, []).append(table)
        return [
            StoreRows(
                store=store,
                families=tuple(table.family for table in tables),
                scalable=tables[0].scalable,
                reason=tables[0].reason,
            )
            for store, tables in sorted(by_store.items())
        ]

    def rows(self, store: StoreRows) -> Iterator[Rows]:
        for table in self._index.tables:
            if table.store == store.store:
                yield from self.table_rows(table)

    def table_rows(self, table: TableEntry) -> Iterator[Rows]:
        """The rows of one table. Raises: FormatError: SAVEPOINT_DAMAGED."""
        key = table.key
        if key is None:
            return
        entry = self._index.files[key]
        with tempfile.TemporaryDirectory(prefix="millpond-import-") as directory:
            path = self._storage.local_path(key)
            if path is None:
                path = os.path.join(directory, "table.parquet")
                self._storage.get_to_file(key, path)
            try:
                if os.path.getsize(path) != entry.size_bytes or file_crc32(path) != entry.crc32:
                    raise damaged(f"{key}: its check sum does not match")
                found = 0
                for rows in _read(path, table):
                    found += len(rows.keys)
                    yield rows
            except (OSError, pa.ArrowException, KeyError) as e:
                raise damaged(f"{key} cannot be read: {e}") from e
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
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_READ_ROWS, columns=["key_group", "key_bytes", "value_bytes"]):
            groups = batch.column("key_group").fill_null(UNKNOWN_GROUP).to_pylist()
            yield Rows(
                table.family, groups, batch.column("key_bytes").to_pylist(), batch.column("value_bytes").to_pylist()
            )
