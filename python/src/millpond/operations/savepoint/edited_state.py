"""Carries out `edit`: all rows of a savepoint pass by, those of one column family through a
function.

Needs the extra `tools`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.format import table_names
from millpond.model.ids import StoreId
from millpond.model.json_fields import MAX_FAMILY_ID, ColumnFamily
from millpond.model.partition_keys import ONE_ZERO_OPERATORS
from millpond.operations.output.copying import Progress
from millpond.operations.savepoint.new_columns import NewColumns
from millpond.operations.savepoint.returned_rows import record_batches
from millpond.query.image import Image
from millpond.query.index import FileEntry, TableEntry
from millpond.query.row_source import UNKNOWN_GROUP, Rows, RowSource, StoreRows
from millpond.rows.arrow_types import struct_type
from millpond.rows.chunks import row_batches
from millpond.rows.encode import conform
from millpond.rows.nested import as_grouped
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.user_code import each, users
from millpond.state import canonical
from millpond.state.ages import with_ages
from millpond.state.changed_rows import check_values, with_columns
from millpond.state.codec import (
    AVRO,
    UNSAFE_ROW,
    check_supported,
    decode_keys,
    decode_lists,
    decode_values,
)
from millpond.state.encoding import conform_lists, encode_keys, encode_lists, encode_values
from millpond.state.join_row_numbers import JoinRowNumbers
from millpond.state.partitioning import key_groups
from millpond.state.second_records import Second, counts_of, numbered, rows_of, second_records
from millpond.state.selection import Selection, family_schemas, rule_of


@dataclass(frozen=True, slots=True)
class _Family:
    """A column family whose rows are made anew."""

    store: str
    family: ColumnFamily
    schema: FamilySchema
    stores: Mapping[int, StoreId]  # by partition

    def encoded_keys(self, keys: Any) -> list[bytes]:
        return encode_keys(keys, self.schema, encoding=self.family.encoding)

    def encoded_values(self, values: Any) -> list[bytes]:
        encode = encode_lists if self.family.multi else encode_values
        return encode(values, self.schema, encoding=self.family.encoding)


class EditedState:
    """The state of a savepoint after an edit.

    Rows of one column family, the first, pass through a function. Its second records are made anew
    from them. All other rows stay as they are.
    """

    def __init__(
        self,
        source: RowSource,
        image: Image,
        info: OperatorInfo,
        chosen: Selection,
        new_columns: NewColumns | None = None,
    ) -> None:
        self.source, self.image, self.operator = source, image, chosen.operator.operator
        self.rule = rule_of(info, chosen.store, chosen.schema)
        self._one_zero = info.name in ONE_ZERO_OPERATORS
        self.groups = source.key_groups
        self.stores = source.stores()
        self.unscalable = next((rows for rows in self._of(chosen.store) if not rows.scalable), None)
        self.before = self.after = 0
        # Store and column family of second records -> old rows, which are left out.
        self._dropped: dict[tuple[str, str], int] = {}
        # Of the new keys: a hash takes 8 bytes, a key about 100.
        self._hashes: list[Any] = []
        schemas = {name: family_schemas(image, self.operator, info, name) for name in info.stores}
        names = [schema.name for schema in schemas[chosen.store]]
        # As the rows are that are read; `first` is as those that are written.
        self._saved_schema = chosen.schema
        self._new_columns = new_columns.changed.columns if new_columns is not None else None
        self.first = self._written(
            chosen.store, chosen.schema if new_columns is None else new_columns.schema
        )
        if self._new_columns is not None:
            if self.first.family.encoding == AVRO:
                raise UnsupportedError(
                    "the state is in Avro",
                    hint="Start the changed job: Spark gives state in Avro its new columns itself.",
                )
            check_values(self._new_columns, struct_type(self.first.schema.value))
        self._of_seconds: list[tuple[Second, _Family]] = []
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

    def _written(self, store: str, schema: FamilySchema) -> _Family:
        mine = self._of(store)
        family = next((f for rows in mine for f in rows.families if f.name == schema.name), None)
        if family is None:  # nothing was ever written to it
            others = [f for rows in mine for f in rows.families]
            # A query has one encoding.
            encoding = AVRO if any(f.encoding == AVRO for f in others) else UNSAFE_ROW
            number = max((f.id for f in others), default=-1) + 1
            if number > MAX_FAMILY_ID:
                raise UnsupportedError(
                    f"the column family {schema.name!r} of store {store!r} would be number"
                    f" {number}, and keys have room for {MAX_FAMILY_ID}"
                )
            family = ColumnFamily(schema.name, number, schema.kind, encoding=encoding)
        check_supported(family, schema)
        return _Family(store, family, schema, {rows.store.partition: rows.store for rows in mine})

    def write(
        self,
        directory: str,
        function: Callable[[Any], Any] | None,
        table: Any,
        progress: Progress | None,
    ) -> tuple[list[TableEntry], list[tuple[str, FileEntry]]]:
        """Write the tables into `directory`. Return them, and their files with their paths."""
        anew = {
            (written.store, written.family.name)
            for written in (self.first, *(w for _, w in self._of_seconds))
        }
        tables: list[TableEntry] = []
        with ExitStack() as stack:
            writers = canonical.TableWriters(self.image, self.groups, directory)
            stack.callback(writers.close)
            row_numbers = None
            if numbered([second for second, _ in self._of_seconds]):
                row_numbers = stack.enter_context(
                    JoinRowNumbers(self.image, self.groups, os.path.join(directory, "unnumbered"))
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
                        if table is None:
                            batch = self._batch(rows)
                            changed = batch if function is None else _changed(function, batch)
                            self._edit(writers, row_numbers, changed, (store, rows))
                    else:
                        second_of = (store.store.name, rows.family.name)
                        self._dropped[second_of] = self._dropped.get(second_of, 0) + len(rows.keys)
                if progress is not None:
                    progress(done, len(self.stores))
            self._edit(writers, row_numbers, table)
            if row_numbers is not None:
                for store_id, groups, keys, values, counts in row_numbers.rows():
                    self._write_numbered(writers, store_id, groups, keys, values, counts)
            for second, written in self._of_seconds:
                if (
                    self.before
                    and second.only_by_need
                    and not self._dropped.get((second.store, second.family))
                ):
                    for mine in written.stores.values():
                        writers.discard(mine, second.family)
            writers.close()
            for store in self.stores:
                tables += writers.tables(replace(store, families=self._families(store, writers)))
            files = writers.files()
            if row_numbers is None:
                keys_of_first = {
                    table_names.table_key(at, self.first.family.name)
                    for at in self.first.stores.values()
                }
                self._check_unique([path for path, entry in files if entry.key in keys_of_first])
        return tables, files

    def _families(
        self, store: StoreRows, writers: canonical.TableWriters
    ) -> tuple[ColumnFamily, ...]:
        """Return the column families of a store, new ones too."""
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
        schema, encoding = self._saved_schema, rows.family.encoding
        keys = decode_keys(rows.keys, schema, place_bytes=0, encoding=encoding)
        decode = decode_lists if rows.family.multi else decode_values
        values = decode(rows.values, schema, encoding=encoding)
        if self._new_columns is not None:
            target = struct_type(self.first.schema.value)
            values = with_columns(values, self._new_columns, target)
        return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])

    def _edit(
        self,
        writers: canonical.TableWriters,
        row_numbers: JoinRowNumbers | None,
        result: Any,
        origin: tuple[StoreRows, Rows] | None = None,
    ) -> None:
        """Write rows.

        Args:
            result: what a user's function returned, or the table.
            origin: the rows that the function got, and their store.
        """
        for part in record_batches(result, self._kinds()):
            names = set(part.schema.names)
            # A key without columns may be left out, as a Parquet file leaves it out.
            wanted = {"key", "value"} if self.first.schema.key.fields else {"value"}
            if not wanted <= names:
                raise InvalidInputError(
                    f"rows need the columns key and value, and have: {', '.join(sorted(names))}",
                    kind=ErrorKind.INVALID_ARGUMENT,
                    hint=(
                        "Return the columns key and value, both structs, as the function got them."
                    ),
                )
            keys = self._keys(part)
            fit = conform_lists if self.first.family.multi else partial(conform, exact=True)
            values = fit(part.column("value"), self.first.schema.value)
            if (
                self.first.family.multi
                and (there := pc.greater(pc.list_value_length(values), 0)).false_count
            ):
                keys, values = keys.filter(there), values.filter(there)  # Spark keeps no empty list
            encoded_keys, encoded = self.first.encoded_keys(keys), self.first.encoded_values(values)
            if origin is not None:
                before = zip(origin[1].keys, origin[1].values, strict=True)
                encoded = with_ages(self.first.family, before, encoded_keys, encoded)
            groups, partitions = self._placed(keys, encoded_keys, origin)
            self.after += len(keys)
            if row_numbers is not None:
                for store, chosen in _by_store(self.first, partitions):
                    row_numbers.write(
                        store,
                        self.first,
                        groups[chosen],
                        keys.take(chosen),
                        [encoded[i] for i in chosen],
                    )
                continue
            self._hashes.append(np.fromiter(map(hash, encoded_keys), np.int64, len(keys)))
            _write(writers, self.first, groups, partitions, encoded_keys, encoded)
            for second, written in self._of_seconds:
                second_keys, second_values = rows_of(second, keys, values, written.schema)
                found = written.encoded_keys(second_keys), written.encoded_values(second_values)
                _write(writers, written, groups, partitions, *found)

    def _kinds(self) -> dict[str, Any]:
        """Return the Arrow types of keys and values."""
        key, value = (struct_type(of) for of in (self.first.schema.key, self.first.schema.value))
        return {"key": key, "value": pa.list_(value) if self.first.family.multi else value}

    def _keys(self, part: Any) -> Any:
        """Return the keys of rows, as the operator makes them."""
        schema = self.first.schema.key
        if not schema.fields and "key" not in part.schema.names:
            return pa.array([{}] * part.num_rows, struct_type(schema))
        keys = conform(part.column("key"), schema, exact=True)
        return as_grouped(keys) if self._one_zero else keys

    def _placed(
        self, keys: Any, encoded: list[bytes], origin: tuple[StoreRows, Rows] | None
    ) -> tuple[Any, Any]:
        """Return the key group and the partition of each row.

        An old key keeps those that it had. A new key goes where Spark will look for it.

        Raises: UnsupportedError: only Spark knows where that is.
        """
        known: dict[bytes, int] = {}
        if origin is not None:
            known = dict(zip(origin[1].keys, origin[1].groups, strict=True))
        found = [known.get(key, UNKNOWN_GROUP) for key in encoded]
        if self.unscalable is not None:
            if origin is None or not known.keys() >= set(encoded):
                raise UnsupportedError(
                    f"store {self.unscalable.store} can get no other keys than it has:"
                    f" {self.unscalable.reason}",
                    hint=(
                        "Return rows with the keys that they had: fewer of them, or with other"
                        " values."
                    ),
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
        return (
            groups,
            np.array([self.groups.partition_of(g, count) for g in numbers.tolist()], np.int64)[
                which
            ],
        )

    def _write_numbered(
        self,
        writers: canonical.TableWriters,
        store: StoreId,
        groups: Any,
        keys: Any,
        values: list[bytes],
        counts: Any,
    ) -> None:
        """Write rows of one store with their numbers.

        Args:
            counts: of each row, how many rows its key has; -1: another row has told already.
        """
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
                writers.write(written.stores[store.partition], rows)

    def _check_unique(self, paths: list[str]) -> None:
        """Raise InvalidInputError if a key comes twice in the tables at `paths`.

        These are all tables of the first column family.
        """
        hashes = np.sort(np.concatenate([np.zeros(0, np.int64), *self._hashes]))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not twice:
            return
        seen: set[bytes] = set()  # two keys may have one hash
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in row_batches(file, ["key_bytes"]):
                    for key in batch.column(0).to_pylist():
                        if hash(key) in twice:
                            if key in seen:
                                raise InvalidInputError(
                                    "two rows have the same key",
                                    kind=ErrorKind.INVALID_ARGUMENT,
                                    hint="Return each key once, over all calls of the function.",
                                )
                            seen.add(key)


def _changed(function: Callable[[Any], Any], rows: Any) -> Any:
    """Return what the user's function makes of rows."""
    what = f"your function {getattr(function, '__name__', type(function).__name__)}"
    with users(what):
        result = function(rows)
    return each(result, what) if isinstance(result, Iterator) else result


def _by_store(written: _Family, partitions: Any) -> Iterator[tuple[StoreId, Any]]:
    """Yield each store that gets rows, and the numbers of those rows."""
    for partition in np.unique(partitions).tolist():
        yield written.stores[partition], np.flatnonzero(partitions == partition)


def _write(
    writers: canonical.TableWriters,
    written: _Family,
    groups: Any,
    partitions: Any,
    keys: list[bytes],
    values: list[bytes],
) -> None:
    for store, chosen in _by_store(written, partitions):
        rows = Rows(
            written.family,
            groups[chosen].tolist(),
            [keys[i] for i in chosen],
            [values[i] for i in chosen],
        )
        writers.write(store, rows)
