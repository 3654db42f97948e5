"""Carries out `edit`: all rows of a savepoint pass by, those of one column family through a function. Needs the extra `tools`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond import layout
from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.ids import StoreId
from millpond.json_fields import ColumnFamily
from millpond.rows.encode import conform
from millpond.savepoint import canonical
from millpond.savepoint.copying import Progress, write_image
from millpond.savepoint.create import check_apart, write_index
from millpond.savepoint.edit import EditReport, Function
from millpond.savepoint.from_savepoint import savepoint_image
from millpond.savepoint.image import Image, StoreImage, operator_info, without_state
from millpond.savepoint.index import CANONICAL, FileEntry, TableEntry, damaged, read_index
from millpond.savepoint.numbering import Numbering
from millpond.savepoint.rewrite import rule_of
from millpond.savepoint.row_source import UNKNOWN_GROUP, NativeRows, Rows, RowSource, StoreRows
from millpond.savepoint.second_records import Second, counts_of, numbered, rows_of, second_records
from millpond.savepoint.target import building, check_vacant
from millpond.scratch import scratch_directory
from millpond.spark_metadata import OperatorInfo
from millpond.state.chunks import fitting_rows, row_batches
from millpond.state.codec import (
    AVRO,
    UNSAFE_ROW,
    check_supported,
    decode_keys,
    decode_lists,
    decode_values,
)
from millpond.state.encoding import conform_lists, encode_keys, encode_lists, encode_values
from millpond.state.partitioning import key_groups
from millpond.state.schema_files import FamilySchema
from millpond.state.selection import Selection, family_schemas, select
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
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EditReport:
    """As `millpond.savepoint.edit`."""
    if (function is None) == (table is None):
        raise InvalidInputError(
            "edit takes either a function or a table", kind=ErrorKind.INVALID_ARGUMENT
        )
    origin, place = root_of(savepoint), root_of(new_savepoint)
    check_apart(origin, place)
    check_vacant(place)
    storage = open_checkpoint(origin)
    index = read_index(storage, origin)
    image = savepoint_image(storage, index)
    selection = select(origin, operator=operator, store=store, column_family=column_family)
    info = operator_info(image, selection.operator.operator)
    source: RowSource = (
        canonical.CanonicalRows(storage, index)
        if index.format == CANONICAL
        else NativeRows(storage, image)
    )
    edited = _Edited(source, image, info, selection)
    if dry_run:
        with scratch_directory("edit") as directory:
            edited.write(directory, function, table, progress)
    else:
        with building(place) as target, target.place.scratch("edit") as directory:
            tables, files = edited.write(directory, function, table, progress)
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
        dry_run=dry_run,
    )


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
            replace(op, stores=tuple(counted(op.operator, s) for s in op.stores))
            for op in image.operators
        ),
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """A column family that is written anew. places: of its stores, by partition."""

    store: str
    family: ColumnFamily
    schema: FamilySchema
    places: Mapping[int, StoreId]

    def encoded_keys(self, keys: Any) -> list[bytes]:
        return encode_keys(keys, self.schema, encoding=self.family.encoding)

    def encoded_values(self, values: Any) -> list[bytes]:
        encode = encode_lists if self.family.multi else encode_values
        return encode(values, self.schema, encoding=self.family.encoding)


class _Edited:
    """All rows of a savepoint, those of one column family passed through a function; what follows from them is made anew."""

    def __init__(
        self, source: RowSource, image: Image, info: OperatorInfo, chosen: Selection
    ) -> None:
        self.source, self.image, self.operator = source, image, chosen.operator.operator
        self.rule = rule_of(info, chosen.store, chosen.schema)
        self.groups = source.key_groups
        self.stores = source.stores()
        self.unscalable = next((rows for rows in self._of(chosen.store) if not rows.scalable), None)
        self.before = self.after = 0
        self._dropped: dict[
            tuple[str, str], int
        ] = {}  # rows that are made anew: of each store and column family
        self._hashes: list[
            Any
        ] = []  # of the new keys: 8 bytes each, where the keys themselves would take 100
        schemas = {name: family_schemas(image, self.operator, info, name) for name in info.stores}
        names = [schema.name for schema in schemas[chosen.store]]
        self.first = self._written(chosen.store, chosen.schema)
        self._of_seconds: list[tuple[Second, _Written]] = []
        for second in second_records(info, chosen.store, chosen.family, names):
            found = [
                schema for schema in schemas.get(second.store, ()) if schema.name == second.family
            ]
            if not found:
                raise FormatError(
                    f"operator {self.operator} has no {second.family} in {second.store}",
                    kind=ErrorKind.FORMAT_DAMAGED,
                )
            self._of_seconds.append((second, self._written(second.store, found[0])))

    def _of(self, store: str) -> list[StoreRows]:
        return [
            rows
            for rows in self.stores
            if (rows.store.operator, rows.store.name) == (self.operator, store)
        ]

    def _written(self, store: str, schema: FamilySchema) -> _Written:
        mine = self._of(store)
        family = next((f for rows in mine for f in rows.families if f.name == schema.name), None)
        if family is None:  # nothing was ever written to it
            others = [f for rows in mine for f in rows.families]
            encoding = (
                AVRO if any(f.encoding == AVRO for f in others) else UNSAFE_ROW
            )  # a query has one
            number = max((f.id for f in others), default=-1) + 1
            family = ColumnFamily(schema.name, number, schema.kind, encoding=encoding)
        check_supported(family, schema)
        return _Written(store, family, schema, {rows.store.partition: rows.store for rows in mine})

    def write(
        self, directory: str, function: Function | None, table: Any, progress: Progress | None
    ) -> tuple[list[TableEntry], list[tuple[str, FileEntry]]]:
        """Write the tables into `directory`. Returns them, and their files with their paths."""
        anew = {
            (written.store, written.family.name)
            for written in (self.first, *(w for _, w in self._of_seconds))
        }
        tables: list[TableEntry] = []
        with ExitStack() as stack:
            writers = canonical.TableWriters(self.image, self.groups, directory)
            stack.callback(writers.close)
            numbering = None
            if numbered([second for second, _ in self._of_seconds]):
                numbering = stack.enter_context(
                    Numbering(self.image, self.groups, os.path.join(directory, "unnumbered"))
                )
            for done, store in enumerate(self.stores, 1):
                for rows in self.source.rows(store):
                    if (
                        store.store.operator != self.operator
                        or (store.store.name, rows.family.name) not in anew
                    ):
                        writers.write(store.store, rows)
                    elif (store.store.name, rows.family.name) == (
                        self.first.store,
                        self.first.family.name,
                    ):
                        self.before += len(rows.keys)
                        if function is not None:
                            self._edit(
                                writers, numbering, function(self._batch(rows)), (store, rows)
                            )
                    else:
                        place = (store.store.name, rows.family.name)
                        self._dropped[place] = self._dropped.get(place, 0) + len(rows.keys)
                if progress is not None:
                    progress(done, len(self.stores))
            self._edit(writers, numbering, table)
            if numbering is not None:
                for store_id, groups, keys, values, counts in numbering.rows():
                    self._write_numbered(writers, store_id, groups, keys, values, counts)
            for second, written in self._of_seconds:
                if (
                    self.before
                    and second.only_by_need
                    and not self._dropped.get((second.store, second.family))
                ):
                    for mine in written.places.values():
                        writers.discard(mine, second.family)
            writers.close()
            for store in self.stores:
                tables += writers.tables(replace(store, families=self._families(store, writers)))
            files = writers.files()
            if numbering is None:
                keys_of_first = {
                    layout.table_key(at, self.first.family.name)
                    for at in self.first.places.values()
                }
                self._check_unique([path for path, entry in files if entry.key in keys_of_first])
        return tables, files

    def _families(
        self, store: StoreRows, writers: canonical.TableWriters
    ) -> tuple[ColumnFamily, ...]:
        """The column families of a store, with those that it had no row of before."""
        there = {family.name for family in store.families}
        new = [
            written.family
            for written in (self.first, *(written for _, written in self._of_seconds))
            if written.store == store.store.name
            and store.store.operator == self.operator
            and written.family.name not in there
            and (written is self.first or writers.has(store.store, written.family.name))
        ]
        return (*store.families, *new)

    def _batch(self, rows: Rows) -> Any:
        schema, encoding = self.first.schema, rows.family.encoding
        keys = decode_keys(rows.keys, schema, place_bytes=0, encoding=encoding)
        decode = decode_lists if rows.family.multi else decode_values
        return pa.RecordBatch.from_arrays(
            [keys, decode(rows.values, schema, encoding=encoding)], names=["key", "value"]
        )

    def _edit(
        self,
        writers: canonical.TableWriters,
        numbering: Numbering | None,
        result: Any,
        origin: tuple[StoreRows, Rows] | None = None,
    ) -> None:
        """Write rows. Args: origin: those that they are made of, and their store."""
        for part in _batches(result):
            names = set(part.schema.names)
            if not {"key", "value"} <= names:
                raise InvalidInputError(
                    f"rows need the columns key and value, and have: {', '.join(sorted(names))}",
                    kind=ErrorKind.INVALID_ARGUMENT,
                )
            keys = conform(part.column("key"), self.first.schema.key, exact=True)
            fit = conform_lists if self.first.family.multi else partial(conform, exact=True)
            values = fit(part.column("value"), self.first.schema.value)
            if (
                self.first.family.multi
                and (there := pc.greater(pc.list_value_length(values), 0)).false_count
            ):
                keys, values = keys.filter(there), values.filter(there)  # Spark keeps no empty list
            encoded_keys, encoded = self.first.encoded_keys(keys), self.first.encoded_values(values)
            groups, partitions = self._placed(keys, encoded_keys, origin)
            self.after += len(keys)
            if numbering is not None:
                for store, chosen in _places(self.first, partitions):
                    numbering.write(
                        store,
                        self.first,
                        groups[chosen],
                        keys.take(chosen),
                        [encoded[i] for i in chosen],
                    )
                continue
            self._hashes.append(np.fromiter(map(hash, encoded_keys), np.int64, len(keys)))
            _spread(writers, self.first, groups, partitions, encoded_keys, encoded)
            for second, written in self._of_seconds:
                second_keys, second_values = rows_of(second, keys, values, written.schema)
                found = written.encoded_keys(second_keys), written.encoded_values(second_values)
                _spread(writers, written, groups, partitions, *found)

    def _placed(
        self, keys: Any, encoded: list[bytes], origin: tuple[StoreRows, Rows] | None
    ) -> tuple[Any, Any]:
        """Key group and partition of each row: of a key that was there before those that it had, of another where Spark will look for it.

        Raises: UnsupportedError: nobody but Spark knows where that is.
        """
        known: dict[bytes, int] = {}
        if origin is not None:
            known = dict(zip(origin[1].keys, origin[1].groups, strict=True))
        found = [known.get(key, UNKNOWN_GROUP) for key in encoded]
        if self.unscalable is not None:
            if origin is None or not known.keys() >= set(encoded):
                raise UnsupportedError(
                    f"store {self.unscalable.store} can get no other keys than it has: {self.unscalable.reason}",
                    hint="Return rows with the keys that they had: fewer of them, or with other values.",
                )
            return np.array(found, np.int64), np.full(
                len(encoded), origin[0].store.partition, np.int64
            )
        if UNKNOWN_GROUP in found:
            groups = key_groups(keys, self.first.schema.key, self.rule, self.groups.max_parallelism)
        else:
            groups = np.array(found, np.int64)
        numbers, which = np.unique(groups, return_inverse=True)
        count = 1 if self.rule.kind == "none" else self.image.partitions or 1
        return groups, np.array(
            [self.groups.partition_of(g, count) for g in numbers.tolist()], np.int64
        )[which]

    def _write_numbered(
        self,
        writers: canonical.TableWriters,
        store: StoreId,
        groups: Any,
        keys: Any,
        values: list[bytes],
        counts: Any,
    ) -> None:
        """Rows of one store with their numbers; `counts` of the rows of their keys, -1 where another row has told already."""
        rows = Rows(self.first.family, groups.tolist(), self.first.encoded_keys(keys), values)
        writers.write(store, rows)
        chosen = np.flatnonzero(counts >= 0)
        for _, written in self._of_seconds:
            told, numbers = counts_of(keys.take(pa.array(chosen)), counts[chosen], written.schema)
            rows = Rows(
                written.family,
                groups[chosen].tolist(),
                written.encoded_keys(told),
                written.encoded_values(numbers),
            )
            if rows.keys:
                writers.write(written.places[store.partition], rows)

    def _check_unique(self, paths: list[str]) -> None:
        """Raise InvalidInputError if a key comes twice in the tables at `paths`, which are all that was edited."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.int64), *self._hashes]))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not twice:
            return
        seen: set[bytes] = set()  # a hash that comes twice may be of two keys
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in row_batches(file, ["key_bytes"]):
                    for key in batch.column(0).to_pylist():
                        if hash(key) in twice:
                            if key in seen:
                                raise InvalidInputError(
                                    "two rows have the same key", kind=ErrorKind.INVALID_ARGUMENT
                                )
                            seen.add(key)


def _places(written: _Written, partitions: Any) -> Iterator[tuple[StoreId, Any]]:
    """Yield each store that some rows belong to, and which rows."""
    for partition in np.unique(partitions).tolist():
        yield written.places[partition], np.flatnonzero(partitions == partition)


def _spread(
    writers: canonical.TableWriters,
    written: _Written,
    groups: Any,
    partitions: Any,
    keys: list[bytes],
    values: list[bytes],
) -> None:
    for store, chosen in _places(written, partitions):
        rows = Rows(
            written.family,
            groups[chosen].tolist(),
            [keys[i] for i in chosen],
            [values[i] for i in chosen],
        )
        writers.write(store, rows)


def _batches(rows: Any) -> Iterator[Any]:
    if rows is None:
        return
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=fitting_rows(rows.num_rows, rows.nbytes))
    elif type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        yield from _batches(_of_pandas(rows))
    elif isinstance(rows, list | tuple | Iterator | pa.RecordBatchReader):
        for part in rows:
            if isinstance(part, list | tuple):
                raise _no_rows(part)
            yield from _batches(part)
    else:
        raise _no_rows(rows)


def _of_pandas(frame: Any) -> Any:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as e:
        raise InvalidInputError(
            f"the DataFrame cannot be taken over: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Columns of maps, and of values of several types, are for pyarrow: return a record batch.",
        ) from e


def _no_rows(what: object) -> InvalidInputError:
    return InvalidInputError(
        f"{type(what).__name__} where rows are wanted: a pyarrow record batch or table, a pandas DataFrame, or several of them",
        kind=ErrorKind.INVALID_ARGUMENT,
    )
