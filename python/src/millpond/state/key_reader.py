"""Looks up keys in a state: finds a key's partition by its hash, and reads that store alone.

Needs the extra `tools`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.model.json_fields import RESERVED_SLOT, ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.query.image import operator_info
from millpond.rows.arrow_types import struct_type
from millpond.rows.hashing import groups_of
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Struct
from millpond.state.codec import check_supported
from millpond.state.encoding import encode_keys, encode_prefixes, sorted_by
from millpond.state.join_columns import join_columns
from millpond.state.lookups import Key
from millpond.state.partitioning import deciding_columns, key_hashes
from millpond.state.selection import open_state, rule_of
from millpond.state.tables import key_value, rows_of, schema_of
from millpond.store.entries import Entry
from millpond.store.point_reads import PointReader


@dataclass(frozen=True, slots=True)
class _Store:
    """An open partition."""

    reader: PointReader
    family: ColumnFamily
    groups: KeyGroups


class KeyReader:
    """What is behind `millpond.lookup`. Args, Raises: as there.

    Attributes:
        batch: the batch whose state answers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        operator: int | str | None,
        store: str | None,
        column_family: str | None,
        batch: int | None,
    ) -> None:
        opened = open_state(path, batch)
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
        self._partitions = sum(one.name == chosen.store for one in chosen.operator.stores)
        names = join_columns(opened, chosen.operator.operator, chosen.store, chosen.family)
        self._shown = names
        self._stored = {new: old for old, new in names.items()}
        self._stores: dict[int, _Store | None] = {}
        self.batch = chosen.batch

    def table(self, keys: Sequence[Key]) -> Any:
        """Return the rows of keys as a `pyarrow.Table`. Args, Raises: as `Lookup.table`."""
        return pa.Table.from_batches(
            [batch for key in keys for batch in self._rows(key)], schema=schema_of(self._selection)
        )

    def close(self) -> None:
        """Close the open stores."""
        for store in self._stores.values():
            if store is not None:
                store.reader.close()
        self._stores.clear()

    def _rows(self, key: Key) -> Iterator[Any]:
        schema = self._selection.schema
        array, columns = self._array(key)
        hashes = self._hashes(array, columns)
        # The number of partitions divides that of key groups.
        partition = int(groups_of(hashes, self._partitions)[0])
        store = self._store(partition)
        if store is None:
            return
        group = int(groups_of(hashes, store.groups.max_parallelism)[0])
        found = list(_found(store, schema, array, columns, group))
        if found:
            yield rows_of(self._selection, partition, store.family, found)

    def _hashes(self, array: Any, columns: Struct) -> npt.NDArray[np.int32]:
        """Return the hash that decides where a key lies.

        Args:
            columns: those of `array`: all of the key, or the first ones.
        """
        schema, rule = self._selection.schema.key, self._rule
        if len(columns.fields) < deciding_columns(schema, rule):
            raise self._incomplete()
        try:
            return key_hashes(array, schema, rule)
        except UnsupportedError as e:
            raise UnsupportedError(
                f"where a key lies is not known: {e.message}",
                kind=ErrorKind.UNSUPPORTED,
                hint="Read it with `millpond state read --key`, which reads all partitions.",
            ) from e

    def _store(self, partition: int) -> _Store | None:
        """Return the open store of a partition; None: it has no row of the column family."""
        if partition not in self._stores:
            self._stores[partition] = self._opened(partition)
        return self._stores[partition]

    def _opened(self, partition: int) -> _Store | None:
        for _, version, family in self._selection.versions((partition,)):
            newest = version.plan.newest
            if family is None or newest is None:
                return None
            check_supported(family, self._selection.schema)
            groups = KeyGroups(newest.key_groups.max_parallelism, newest.key_groups.base)
            return _Store(PointReader(version), family, groups)
        return None

    def _array(self, key: Key) -> tuple[Any, Struct]:
        """Return a key as a `pyarrow.StructArray` of one row, and its columns: all, or the first
        ones.
        """
        schema = self._selection.schema
        given = {}
        for name, value in _leaves(key):
            top, dot, rest = name.partition(".")
            place = self._stored.get(top, top) + dot + rest
            given[place] = key_value(schema.key, place, value, self._shown)
        count = len({place.partition(".")[0] for place in given})
        columns = Struct(schema.key.fields[:count])
        first = count == sorted_by(schema)
        array = _row(columns, "", given) if first or count == len(schema.key.fields) else None
        if array is None:
            raise self._incomplete()
        return array, columns

    def _incomplete(self) -> InvalidInputError:
        schema = self._selection.schema
        names = [self._shown.get(name, name) for name in _names(schema.key)]
        enough = ""
        if sorted_by(schema):
            first = [*_names(Struct(schema.key.fields[: sorted_by(schema)]))]
            enough = f", or {', '.join(self._shown.get(name, name) for name in first)} alone"
        types = ", ".join(
            f"{self._shown.get(field.name, field.name)} {field.type}"
            for field in struct_type(schema.key)
        )
        example = " ".join(f"--key {name}=..." for name in names)
        return InvalidInputError(
            f"a look-up needs all columns of the key ({types}){enough}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"Give {example}; or search with `millpond state read --key`.",
        )


def _found(
    store: _Store, schema: FamilySchema, array: Any, columns: Struct, group: int
) -> Iterator[Entry]:
    """Yield the entries of a key, or of the keys that begin with these columns."""
    family = store.family
    slot = store.groups.slot(group).to_bytes(2, "big")
    number = family.id.to_bytes(2, "big")
    if len(columns.fields) < len(schema.key.fields):
        (begin,) = encode_prefixes(array, schema, encoding=family.encoding)
        yield from store.reader.starting_with(slot + number + begin)
        return
    (encoded,) = encode_keys(array, schema, encoding=family.encoding)
    physical = slot + number + encoded
    if family.spans_key_groups:
        physical = RESERVED_SLOT.to_bytes(2, "big") + number + encoded + slot
    value = store.reader.get(physical)
    if value is not None:
        yield physical, value


def _leaves(key: Key, outer: str = "") -> Iterator[tuple[str, object]]:
    for name, value in key.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _row(columns: Struct, outer: str, given: Mapping[str, Any]) -> Any:
    """Return a `pyarrow.StructArray` of one row; None: a column is not given."""
    arrays = []
    for field, target in zip(columns.fields, struct_type(columns), strict=True):
        place = outer + field.name
        if place in given:
            arrays.append(pa.array([given[place]], target.type))
        elif isinstance(field.type, Struct):
            arrays.append(_row(field.type, f"{place}.", given))
        else:
            return None
    if any(array is None for array in arrays):
        return None
    if not arrays:
        return pa.array([{}], struct_type(columns))
    return pa.StructArray.from_arrays(arrays, fields=list(struct_type(columns)))


def _names(columns: Struct, outer: str = "") -> Iterator[str]:
    """Yield the names of columns; of a struct those of its columns."""
    for field in columns.fields:
        if isinstance(field.type, Struct):
            yield from _names(field.type, f"{outer}{field.name}.")
        else:
            yield f"{outer}{field.name}"
