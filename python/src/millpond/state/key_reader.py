"""Looks up keys in a state: finds a key's partition by its hash, and reads that store alone.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
    error,
)
from millpond.model.ids import StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.model.partition_keys import ONE_ZERO_OPERATORS, TRANSFORM_WITH_STATE_OPERATORS
from millpond.model.physical_key import around
from millpond.query.image import operator_info
from millpond.rows.chunks import pair_bytes
from millpond.rows.hashing import groups_of
from millpond.rows.nested import as_grouped
from millpond.rows.readable import misfit
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Struct
from millpond.state.codec import check_supported, split_lists
from millpond.state.encoding import encode_keys, encode_prefixes, sorted_by
from millpond.state.glancing import telling_more
from millpond.state.join_columns import join_columns
from millpond.state.join_counts import counted_by, enough_columns
from millpond.state.key_columns import first_name, leaves, names_of, places_of, rows_of_columns
from millpond.state.key_examples import columns_text, key_hint
from millpond.state.lookups import Key
from millpond.state.open_stores import OpenStores
from millpond.state.partitioning import deciding_columns, key_hashes
from millpond.state.selection import rule_of
from millpond.state.tables import key_value, rows_of, schema_of
from millpond.store.entries import Entry
from millpond.store.point_reads import Most, PointReader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Store:
    """An open partition."""

    reader: PointReader
    family: ColumnFamily
    groups: KeyGroups
    by_key: bool  # whether keys tell their slots; else all lie in slot 0


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of several keys.

    rows: a `pyarrow.Table`, in the order of the keys.
    counts: how many rows each key has.
    """

    rows: Any
    counts: list[int]


class KeyReader:
    """What is behind `millpond.lookup`. Threads may share it.

    Args:
        stores: of the state. `close` closes them.
        operator, store, column_family: as for `millpond.lookup`.
        names: `shown` of a reader of the same column family; None: find them, which reads rows.
    Raises: as `millpond.lookup`.
    Attributes:
        batch: the batch whose state answers.
        enough: how many first columns of a key find all keys with them; 0: all are needed.
    """

    def __init__(
        self,
        stores: OpenStores,
        operator: int | str | None,
        store: str | None,
        column_family: str | None,
        *,
        names: Mapping[str, str] | None = None,
    ) -> None:
        opened = stores.opened
        self._selection = opened.select(operator, store, column_family)
        if self._selection.tables is not None:
            raise UnsupportedError(
                f"{opened.place} is a canonical savepoint: its tables have no index of keys",
                kind=ErrorKind.UNSUPPORTED,
                hint="Read it with `millpond state read --key`, which reads the whole table.",
            )
        chosen = self._selection
        info = operator_info(opened.image, chosen.operator.operator)
        self._rule = rule_of(info, chosen.store, chosen.schema)
        self._counts = counted_by(info.name, chosen.store, chosen.family)
        self._counter: KeyReader | None = None
        self._one_zero = info.name in ONE_ZERO_OPERATORS
        # Spark may have placed a key elsewhere than where its bytes say: by grouping columns of
        # other types than the key's, or by a text's collation.
        self._may_be_elsewhere = info.name in TRANSFORM_WITH_STATE_OPERATORS
        self.enough = enough_columns(info.name, chosen.store, chosen.schema)
        self._partitions = stores.partitions(chosen.operator.operator, chosen.store)
        self._names = names
        self._schema = schema_of(chosen)
        self._open = stores
        self._stores: dict[int, _Store | None] = {}
        self.batch = chosen.batch

    @property
    def family(self) -> FamilySchema:
        """The column family with its columns."""
        return self._selection.schema

    @property
    def shown(self) -> Mapping[str, str]:
        """Names of a join's key columns for the user, by stored names. To find them, this reads
        rows once.
        """
        if self._names is None:
            self._names = self._found_names()
        return self._names

    @property
    def names(self) -> Mapping[str, str] | None:
        """What `shown` is; None: nobody has asked for it."""
        return self._names

    def _found_names(self) -> Mapping[str, str]:
        chosen = self._selection
        return join_columns(
            self._open.opened, chosen.operator.operator, chosen.store, chosen.family
        )

    def table(self, keys: Sequence[Key]) -> Any:
        """Return the rows of keys as a `pyarrow.Table`. Args, Raises: as `Lookup.table`."""
        with telling_more(self._open.opened):
            return self.find(keys).rows

    def find(self, keys: Sequence[Key], limit: Most | None = None) -> Found:
        """Return the rows of keys. All keys are looked up together, which takes less time.

        Args:
            limit: at most so much; None: all.
        Raises: as `Lookup.table`; InvalidInputError: REQUEST_TOO_LARGE: there is more.
        """
        given = [self._places(key) for key in keys]
        return self._find(given, limit) if self._counts is None else self._numbered(given, limit)

    def _numbered(self, given: list[dict[str, Any]], limit: Most | None) -> Found:
        """Return the rows of a join's keys. Without a number a key means all of its rows.

        Args:
            given: values by place.
        """
        number = self._selection.schema.key.distinct_names[-1]
        without = [n for n, key in enumerate(given) if number not in key]
        counts = dict(zip(without, self._rows_of([given[n] for n in without]), strict=True))
        _check(limit, sum(counts.values()), 0)
        wanted, of = [], []
        for n, key in enumerate(given):
            rows = [key] if n not in counts else [key | {number: i} for i in range(counts[n])]
            wanted += rows
            of += [n] * len(rows)
        found = self._find(wanted, limit)
        totals = [0] * len(given)
        for n, count in zip(of, found.counts, strict=True):
            totals[n] += count
        return Found(found.rows, totals)

    def _rows_of(self, given: list[dict[str, Any]]) -> list[int]:
        """Return how many rows the keys of a join have."""
        if not given:
            return []
        if self._counter is None:
            self._counter = _Counter(self, self._counts or (None, None))
        found = self._counter.find(given)
        values = found.rows.column("value").combine_chunks()
        numbers = iter(values.field(0).to_pylist() if len(values) else [])
        return [next(numbers) or 0 if count else 0 for count in found.counts]

    def _find(self, given: list[dict[str, Any]], limit: Most | None) -> Found:
        """Return the rows of keys, values by place."""
        found: list[tuple[_Store, int, list[Entry]] | None] = [None] * len(given)
        alike: dict[tuple[str, ...], list[int]] = {}
        for number, places in enumerate(given):
            alike.setdefault(tuple(places), []).append(number)
        rows = size_bytes = 0
        for numbers in alike.values():
            for number, one in zip(
                numbers, self._entries([given[n] for n in numbers], limit), strict=True
            ):
                found[number] = one
                if one is not None:
                    rows += len(one[2])
                    size_bytes += pair_bytes(one[2])
                    _check(limit, rows, size_bytes)
        if self._may_be_elsewhere and any(one is None or not one[2] for one in found):
            self._check_placed()
        return self._decoded(found, limit)

    def _check_placed(self) -> None:
        """Check that all keys lie where their bytes say.

        Spark's schema of the state does not tell by what it placed them. The executor that was told
        so, or was given a key of another partition, has marked the store.

        Raises: UnsupportedError: there is such a store.
        """
        chosen = self._selection
        why = self._open.misplaced(chosen.operator.operator, chosen.store)
        if why is not None:
            raise _unplaced(why)

    def close(self) -> None:
        """Close the open stores."""
        self._stores.clear()
        self._open.close()

    def _entries(
        self, keys: list[dict[str, Any]], limit: Most | None
    ) -> Iterator[tuple[_Store, int, list[Entry]] | None]:
        """Yield for each key its store, its partition and its entries; None: it has none.

        Args:
            keys: values by place, with the same places.
        """
        schema = self._selection.schema
        array, columns = self._array(keys)
        whole = len(columns.fields) == len(schema.key.fields)
        encode = encode_keys if whole else encode_prefixes
        hashes = self._hashes(array, columns)
        # Stores of one operator mostly agree about these two.
        encoded: dict[str, list[bytes]] = {}
        groups: dict[int, list[int]] = {}
        # The number of partitions divides that of key groups.
        for number, partition in enumerate(groups_of(hashes, self._partitions).tolist()):
            store = self._store(partition)
            if store is None:
                yield None
                continue
            family, most = store.family, store.groups.max_parallelism
            if family.encoding not in encoded:
                encoded[family.encoding] = encode(array, schema, encoding=family.encoding)
            if most not in groups:
                groups[most] = groups_of(hashes, most).tolist()
            slot = store.groups.slot(groups[most][number]) if store.by_key else 0
            lead, end = around(family, slot)
            bytes_of_key = encoded[family.encoding][number]
            if not whole:
                prefix = lead + bytes_of_key
                yield (
                    store,
                    partition,
                    self._read(
                        store, partial(PointReader.starting_with, prefix=prefix, limit=limit)
                    ),
                )
                continue
            physical = lead + bytes_of_key + end
            value = self._read(store, partial(PointReader.get, key=physical))
            yield None if value is None else (store, partition, [(physical, value)])

    def _decoded(
        self, found: list[tuple[_Store, int, list[Entry]] | None], limit: Most | None
    ) -> Found:
        counts = [0] * len(found)
        parts: list[tuple[ColumnFamily, int, Entry]] = []
        for number, one in enumerate(found):
            if one is None:
                continue
            store, partition, entries = one
            counts[number] = (
                sum(split_lists([value for _, value in entries])[1])
                if store.family.multi
                else len(entries)
            )
            parts += [(store.family, partition, entry) for entry in entries]
        _check(limit, sum(counts), 0)
        batches = []
        for family, run in groupby(parts, itemgetter(0)):
            rows = list(run)
            batches.append(
                rows_of(
                    self._selection,
                    self._schema,
                    family,
                    [partition for _, partition, _ in rows],
                    [entry for _, _, entry in rows],
                )
            )
        return Found(pa.Table.from_batches(batches, schema=self._schema), counts)

    def _hashes(self, array: Any, columns: Struct) -> npt.NDArray[np.int32]:
        """Return the hashes that decide where keys lie.

        Args:
            columns: those of `array`: all of the key, or the first ones.
        """
        schema, rule = self._selection.schema.key, self._rule
        if len(columns.fields) < deciding_columns(schema, rule):
            raise self._incomplete()
        try:
            return key_hashes(array, schema, rule)
        except UnsupportedError as e:
            raise _unplaced(e.message) from e

    def _store(self, partition: int) -> _Store | None:
        """Return the open store of a partition; None: it has no row of the column family."""
        if partition not in self._stores:
            self._stores[partition] = self._opened(partition)
        return self._stores[partition]

    def _opened(self, partition: int) -> _Store | None:
        chosen = self._selection
        reader = self._open.get(StoreId(chosen.operator.operator, partition, chosen.store))
        newest = reader.version.plan.newest
        family = next((f for f in reader.version.families if f.name == chosen.family), None)
        if family is None or newest is None:
            return None
        check_supported(family, chosen.schema)
        groups = KeyGroups(newest.key_groups.max_parallelism, newest.key_groups.base)
        return _Store(reader, family, groups, newest.key_groups.by_key)

    def _read(self, store: _Store, call: Callable[[PointReader], T]) -> T:
        """Return what `call` reads from a store. If a file is gone, another snapshot may have the
        state: ask the store again after a listing.
        """
        try:
            return call(store.reader)
        except (FormatError, NotFoundError):
            at = store.reader.version.files.store
            if not self._open.list_again(at, store.reader):
                raise
            again = self._stores[at.partition] = self._opened(at.partition)
            if again is None:
                raise
            return call(again.reader)

    def _places(self, key: Key) -> dict[str, Any]:
        """Return the values of a key by place. Raises: as `places_of`."""
        stored = self._selection.schema.key.distinct_names
        known = all(first_name(name, stored)[0] in stored for name, _ in leaves(key))
        return places_of(key, stored, {} if known else self.shown)

    def _array(self, keys: list[dict[str, Any]]) -> tuple[Any, Struct]:
        """Return keys as a `pyarrow.StructArray`, and its columns: all, or the first ones."""
        schema = self._selection.schema
        given = {place: self._column(place, [key[place] for key in keys]) for place in keys[0]}
        names = schema.key.distinct_names
        count = len({first_name(place, names)[0] for place in given})
        columns = Struct(schema.key.fields[:count])
        first = count == sorted_by(schema)
        complete = first or count == len(schema.key.fields)
        array = rows_of_columns(columns, "", given, len(keys)) if complete else None
        if array is None:
            raise self._incomplete()
        return array, columns

    def _column(self, place: str, values: list[Any]) -> Any:
        """Return the values of a key column as a `pyarrow.Array` of its type.

        Raises: as `key_value`.
        """
        schema = self._selection.schema.key
        kind = self._value(schema, place, None).type
        found = self._values(schema, kind, place, values)
        return as_grouped(found) if self._one_zero else found

    def _values(self, schema: Struct, kind: Any, place: str, values: list[Any]) -> Any:
        texts = {isinstance(value, str) for value in values if value is not None}
        # Shown in another form than Arrow takes.
        apart = (
            (pa.types.is_binary(kind) and True in texts)
            or pa.types.is_duration(kind)
            or any(misfit(value, kind) for value in values)
        )
        try:
            if apart or len(texts) > 1:
                pass  # one by one
            elif texts == {True} and not pa.types.is_string(kind):
                return pc.cast(pa.array(values, pa.string()), kind)
            else:
                return pa.array(values, kind)
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            pa.ArrowTypeError,
            OverflowError,
            TypeError,
            ValueError,
        ):
            pass  # one by one: the error then names the value
        return pa.array([self._value(schema, place, value) for value in values], kind)

    def _value(self, schema: Struct, place: str, value: object) -> Any:
        """Return `key_value`. Only its errors tell what the columns are called."""
        try:
            return key_value(schema, place, value, {})
        except InvalidInputError:
            return key_value(schema, place, value, self.shown)

    def _incomplete(self) -> InvalidInputError:
        schema = self._selection.schema
        enough = ""
        if self.enough:
            first = [*names_of(Struct(schema.key.fields[: self.enough]))]
            enough = f", or {', '.join(self.shown.get(name, name) for name in first)} alone"
        types = columns_text(schema.key, self.shown)
        return InvalidInputError(
            f"a look-up needs all columns of the key ({types}){enough}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"{key_hint(schema.key, self.shown)}; or search with `millpond state read --key`.",
        )


class _Counter(KeyReader):
    """Reads how many rows the keys of a join have: those of another reader, to whose rows their
    columns are compared.

    Args:
        rows: that reader.
        counts: store and column family of the counts.
    """

    def __init__(self, rows: KeyReader, counts: tuple[str | None, str | None]) -> None:
        super().__init__(rows._open, rows._selection.operator.operator, *counts)
        self._rows = rows

    def _found_names(self) -> Mapping[str, str]:
        return self._rows.shown


def _unplaced(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"where a key lies is not known: {why}",
        kind=ErrorKind.UNSUPPORTED,
        hint="Read it with `millpond state read --key`, which reads all partitions.",
    )


def _check(limit: Most | None, rows: int, size_bytes: int) -> None:
    """Raises: InvalidInputError: REQUEST_TOO_LARGE: this is more than the limit."""
    if limit is not None and limit.is_exceeded(rows, size_bytes):
        most = f"{limit.rows} rows" if rows > limit.rows else f"{limit.size_bytes} bytes of rows"
        raise error(ErrorKind.REQUEST_TOO_LARGE, f"the keys have more than {most}")
