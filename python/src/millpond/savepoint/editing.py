"""Carries out `edit`: all rows of a savepoint pass by, those of one column family through a function. Needs the extra `tools`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond import layout
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.ids import StoreId
from millpond.json_fields import ColumnFamily
from millpond.partition_keys import TRANSFORM_WITH_STATE_OPERATORS
from millpond.savepoint import canonical
from millpond.savepoint.copying import write_image
from millpond.savepoint.create import check_apart, write_index
from millpond.savepoint.edit import EditReport, Function
from millpond.savepoint.from_savepoint import savepoint_image
from millpond.savepoint.image import Image, StoreImage, without_state
from millpond.savepoint.index import CANONICAL, FileEntry, TableEntry, damaged, read_index
from millpond.savepoint.rewrite import rule_of
from millpond.savepoint.row_source import NativeRows, Rows, RowSource, StoreRows
from millpond.savepoint.target import building, check_vacant
from millpond.spark_metadata import OperatorInfo
from millpond.state.codec import AVRO, UNSAFE_ROW, check_supported, decode_keys, decode_values
from millpond.state.encoding import encode_keys, encode_values
from millpond.state.partitioning import key_groups
from millpond.state.schema_files import FamilySchema
from millpond.state.selection import operator_info, select
from millpond.storage import open_checkpoint, root_of


def edit(
    savepoint: str | os.PathLike[str],
    new_savepoint: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    function: Function | None = None,
    table: Any = None,
) -> EditReport:
    """As `millpond.savepoint.edit`."""
    if (function is None) == (table is None):
        raise InvalidInputError("edit takes either a function or a table", kind=ErrorKind.INVALID_ARGUMENT)
    origin, place = root_of(savepoint), root_of(new_savepoint)
    check_apart(origin, place)
    check_vacant(place)
    storage = open_checkpoint(origin)
    index = read_index(storage, origin)
    image = savepoint_image(storage, index)
    selection = select(origin, operator=operator, store=store, column_family=column_family)
    info = operator_info(image, selection.operator.operator)
    check_editable(info, selection.family)
    source: RowSource = (
        canonical.CanonicalRows(storage, index) if index.format == CANONICAL else NativeRows(storage, image)
    )
    edited = _Edited(source, image, info, selection.operator.operator, selection.store, selection.schema)
    with building(place) as target, target.place.scratch("edit") as directory:
        tables, files = edited.write(directory, function, table)
        for path, entry in files:
            target.storage.put_file(entry.key, path, if_absent=True, link=True)
        changed = _counted(without_state(image), tables)
        written = write_image(changed, storage, target, link=True, verify=True, damaged=damaged)
        written.files |= {entry.key: entry for _, entry in files}
        write_index(target, changed, written, format=CANONICAL, tables=tuple(tables))
    return EditReport(
        savepoint=place,
        operator=selection.operator.operator,
        store=selection.store,
        column_family=selection.family,
        rows_before=edited.before,
        rows_after=edited.after,
    )


def check_editable(info: OperatorInfo, family: str) -> None:
    """Raise UnsupportedError if Spark keeps a second record of the rows of `family`, which an edit would contradict."""
    why = ""
    if info.name == "symmetricHashJoin":
        why = "a join counts its rows in another store"
    elif family.startswith("$"):
        why = "these rows belong to those of a state variable"
    elif info.name in TRANSFORM_WITH_STATE_OPERATORS:
        variable = next((v for v in info.state_variables if v.get("stateName") == family), {})
        if variable.get("stateVariableType") == "ListState":
            why = "Spark counts the elements of lists elsewhere"
        elif variable.get("ttlEnabled"):
            why = "Spark keeps the times at which rows expire elsewhere too"
    if why:
        raise UnsupportedError(f"column family {family!r} of {info.name} cannot be edited: {why}")


def _counted(image: Image, tables: Iterable[TableEntry]) -> Image:
    """The image with the numbers of keys that its tables have."""
    keys: dict[StoreId, int] = {}
    for table in tables:
        keys[table.store] = keys.get(table.store, 0) + (0 if table.family.internal else table.rows)

    def counted(operator: int, store: StoreImage) -> StoreImage:
        return replace(store, keys=keys.get(StoreId(operator, store.partition, store.name), 0))

    return replace(
        image,
        operators=tuple(
            replace(op, stores=tuple(counted(op.operator, s) for s in op.stores)) for op in image.operators
        ),
    )


class _Edited:
    """All rows of a savepoint, those of one column family passed through a function."""

    def __init__(
        self, source: RowSource, image: Image, info: OperatorInfo, operator: int, store: str, schema: FamilySchema
    ) -> None:
        self.source, self.image, self.operator, self.store, self.schema = source, image, operator, store, schema
        self.rule = rule_of(info, store, schema)
        self.groups = source.key_groups
        self.before = self.after = 0
        self._hashes: list[Any] = []  # of the new keys: 8 bytes each, where the keys themselves would take 100

    def write(
        self, directory: str, function: Function | None, table: Any
    ) -> tuple[list[TableEntry], list[tuple[str, FileEntry]]]:
        """Write the tables into `directory`. Returns them, and their files with their paths."""
        stores = self.source.stores()
        mine = [s for s in stores if (s.store.operator, s.store.name) == (self.operator, self.store)]
        family = next((f for s in mine for f in s.families if f.name == self.schema.name), None)
        if family is None:
            others = [f for s in mine for f in s.families]
            family = ColumnFamily(
                self.schema.name,
                max((f.id for f in others), default=-1) + 1,
                self.schema.kind,
                encoding=AVRO if any(f.encoding == AVRO for f in others) else UNSAFE_ROW,  # a query has one
            )
        check_supported(family, self.schema)
        tables: list[TableEntry] = []
        files: list[tuple[str, FileEntry]] = []
        with ExitStack() as stack:
            writers = canonical.TableWriters(self.image, self.groups, directory)
            stack.callback(writers.close)
            for store in stores:
                for rows in self.source.rows(store):
                    if store not in mine or rows.family.name != self.schema.name:
                        writers.write(store.store, rows)
                    elif function is not None:
                        self.before += len(rows.keys)
                        self._edit(writers, mine, family, self._batch(rows), function)
                    else:
                        self.before += len(rows.keys)
            for batch in _batches(table):
                self._edit(writers, mine, family, batch, lambda rows: rows)
            writers.close()
            for store in stores:
                families = list(store.families)
                if store in mine and family.name not in {f.name for f in families}:
                    families.append(family)
                tables += writers.tables(replace(store, families=tuple(families)))
            files += writers.files()
            tables_of_family = {layout.table_key(store.store, family.name) for store in mine}
            self._check_unique([path for path, entry in files if entry.key in tables_of_family])
        return tables, files

    def _batch(self, rows: Rows) -> Any:
        encoding = rows.family.encoding
        keys = decode_keys(rows.keys, self.schema, place_bytes=0, encoding=encoding)
        values = decode_values(rows.values, self.schema, encoding=encoding)
        return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])

    def _edit(
        self,
        writers: canonical.TableWriters,
        stores: list[StoreRows],
        family: ColumnFamily,
        batch: Any,
        function: Function,
    ) -> None:
        result = function(batch)
        if result is None:
            return
        for part in _batches(result):
            names = set(part.schema.names)
            if not {"key", "value"} <= names:
                raise InvalidInputError(
                    f"rows need the columns key and value, and have: {', '.join(sorted(names))}",
                    kind=ErrorKind.INVALID_ARGUMENT,
                )
            keys = encode_keys(part.column("key"), self.schema, encoding=family.encoding)
            values = encode_values(part.column("value"), self.schema, encoding=family.encoding)
            self._hashes.append(np.fromiter(map(hash, keys), np.int64, len(keys)))
            decoded = decode_keys(keys, self.schema, place_bytes=0, encoding=family.encoding)
            groups = key_groups(decoded, self.schema.key, self.rule, self.groups.max_parallelism).tolist()
            self.after += len(keys)
            self._spread(writers, stores, family, groups, keys, values)

    def _check_unique(self, paths: list[str]) -> None:
        """Raise InvalidInputError if a key comes twice in the tables at `paths`, which are all that was edited."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.int64), *self._hashes]))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not twice:
            return
        seen: set[bytes] = set()  # a hash that comes twice may be of two keys
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["key_bytes"]):
                    for key in batch.column(0).to_pylist():
                        if hash(key) in twice:
                            if key in seen:
                                raise InvalidInputError("two rows have the same key", kind=ErrorKind.INVALID_ARGUMENT)
                            seen.add(key)

    def _spread(
        self,
        writers: canonical.TableWriters,
        stores: list[StoreRows],
        family: ColumnFamily,
        groups: list[int],
        keys: list[bytes],
        values: list[bytes],
    ) -> None:
        """Give each row to the store of the partition where Spark will look for it."""
        by_partition = {store.store.partition: store.store for store in stores}
        parts: dict[int, Rows] = {}
        for group, key, value in zip(groups, keys, values, strict=True):
            partition = 0 if self.rule.kind == "none" else self.groups.partition_of(group, self.image.partitions or 1)
            rows = parts.setdefault(partition, Rows(family))
            rows.groups.append(group)
            rows.keys.append(key)
            rows.values.append(value)
        for partition, rows in sorted(parts.items()):
            writers.write(by_partition[partition], rows)


def _batches(rows: Any) -> Iterator[Any]:
    if rows is None:
        return
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.combine_chunks().to_batches(max_chunksize=65_536)
    else:
        for part in rows:
            yield from _batches(part)
