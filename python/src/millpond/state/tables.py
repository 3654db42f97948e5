"""State as Arrow tables. `scan_state` returns it in batches of rows, `read_state` as one table.

Needs the extra `tools`.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import ErrorKind, InvalidInputError
from millpond.model.json_fields import ColumnFamily
from millpond.model.physical_key import PHYSICAL_PREFIX_BYTES, SLOT_BYTES
from millpond.query.erasing import Erasures, read_erasures, unerased
from millpond.query.index import SavepointIndex
from millpond.rows.arrow_types import struct_type
from millpond.rows.chunks import CHUNK_BYTES, chunks_of, pair_bytes
from millpond.rows.encode import conform, encode_rows
from millpond.rows.nested import as_grouped, mapped
from millpond.rows.readable import list_of, scalar_of
from millpond.spark.types import Struct
from millpond.state.codec import (
    binary_array,
    check_supported,
    decode_keys,
    decode_values,
    single_values,
    split_lists,
)
from millpond.state.join_columns import join_columns
from millpond.state.key_columns import path_of, places_of
from millpond.state.key_examples import key_hint
from millpond.state.read_state import Keys
from millpond.state.selection import Opened, Selection, open_state
from millpond.state.writing import limited
from millpond.storage import Storage, open_checkpoint, root_of
from millpond.store.entries import entries

DEFAULT_BATCH_ROWS = 65_536


def scan_state(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    join_names: bool = False,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    partitions: Collection[int] | None = None,
    limit: int | None = None,
) -> tuple[Any, Iterator[Any]]:
    """Return the `pyarrow.Schema` of a state, and an iterator over its `pyarrow.RecordBatch`es,
    partition by partition.

    Args, Raises: as `millpond.read_state`.
        batch_rows: rows of a batch, at least 1. A batch has fewer if rows are large or `keys`
            leaves some out.
        partitions: only these; None: all.
        limit: at most so many rows; None: all.
        join_names: the columns of a join's key have the names that they have in its inputs.
    """
    if batch_rows < 1:
        raise InvalidInputError(
            f"batch_rows is {batch_rows}: it must be at least 1", hint="Leave batch_rows out."
        )
    root = root_of(path)
    storage = open_checkpoint(root)
    before = read_erasures(storage)
    with unerased(storage, root, before):
        opened = open_state(path, batch)
    selection = opened.select(operator, store, column_family)
    schema = schema_of(selection, raw)
    names: Mapping[str, str] = {}
    if join_names or keys is not None:
        names = shown_names(opened, selection)
    chosen = None if keys is None else Filter(keys, selection.schema.key, names)
    few = limit is not None
    found = batches_of(selection, schema, chosen, raw, batch_rows, partitions, few=few)
    batches = _unerased(limited(found, limit), storage, root, before)
    if not (join_names and names):
        return schema, batches
    return _renamed(schema, names), _with_names(batches, _renamed(schema, names))


def _unerased(
    batches: Iterable[Any], storage: Storage, root: str, before: Erasures
) -> Iterator[Any]:
    with unerased(storage, root, before):
        yield from batches


def shown_names(opened: Opened, selection: Selection) -> Mapping[str, str]:
    """Return the names of key columns that `state list` shows, by stored names."""
    return join_columns(opened, selection.operator.operator, selection.store, selection.family)


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    at = schema.get_field_index("key")
    fields = [field.with_name(names.get(field.name, field.name)) for field in schema.field(at).type]
    return schema.set(at, pa.field("key", pa.struct(fields)))


def _with_names(batches: Iterator[Any], schema: Any) -> Iterator[Any]:
    for batch in batches:
        columns = [
            pa.StructArray.from_arrays(
                column.flatten(), fields=list(field.type), mask=pc.is_null(column)
            )
            if field.name == "key"
            else column
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def first_rows(selection: Selection, count: int) -> Any:
    """Return the first rows of a column family as a `pyarrow.RecordBatch`; None: it has none."""
    schema = schema_of(selection)
    return next(batches_of(selection, schema, None, False, count, None, few=True), None)


def read_state(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    limit: int | None = None,
    join_names: bool = False,
) -> Any:
    """Return the state that `scan_state` reads, or its first rows, as one `pyarrow.Table`."""
    schema, batches = scan_state(
        path,
        operator=operator,
        store=store,
        column_family=column_family,
        batch=batch,
        keys=keys,
        raw=raw,
        join_names=join_names,
        limit=limit,
    )
    return pa.Table.from_batches(batches, schema=schema)


def schema_of(selection: Selection, raw: bool = False) -> Any:
    """Return the `pyarrow.Schema` of the rows of a column family."""
    fields = [
        pa.field("partition", pa.int32()),
        pa.field("key", struct_type(selection.schema.key)),
        pa.field("value", struct_type(selection.schema.value)),
    ]
    if raw:
        fields += [pa.field("key_bytes", pa.binary()), pa.field("value_bytes", pa.binary())]
    return pa.schema(fields)


def batches_of(
    selection: Selection,
    schema: Any,
    chosen: Filter | None,
    raw: bool,
    batch_rows: int,
    partitions: Collection[int] | None,
    *,
    few: bool = False,
) -> Iterator[Any]:
    """Yield the rows of a column family.

    Args: as for `scan_state`. chosen: only these rows. few: as for `entry_chunks`.
    """
    for partition, family, keys, values in _stored(selection, batch_rows, partitions, few):
        rows = _decoded(selection, schema, partition, family, keys, values, raw)
        if chosen is not None:
            rows = rows.filter(chosen.mask(rows.column(1)))
        if rows.num_rows:
            yield rows


def _decoded(
    selection: Selection,
    schema: Any,
    partition: int | Sequence[int],
    family: ColumnFamily,
    keys: list[bytes],
    values: list[bytes],
    raw: bool,
) -> Any:
    """Return rows as a `pyarrow.RecordBatch`.

    Args:
        partition: of all rows, or of each of them.
        values: single ones.
    """
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), len(keys))
        if isinstance(partition, int)
        else pa.array(partition, pa.int32()),
        decode_keys(keys, selection.schema, place_bytes=0, encoding=family.encoding),
        decode_values(values, selection.schema, encoding=family.encoding),
    ]
    if raw:
        columns += [binary_array(keys), binary_array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of(
    selection: Selection,
    schema: Any,
    family: ColumnFamily,
    partitions: Sequence[int],
    found: Sequence[tuple[bytes, bytes]],
) -> Any:
    """Return entries of stores, physical keys and values, as a `pyarrow.RecordBatch` with the
    columns that `read_state` returns.

    Args:
        schema: from `schema_of`.
        family: as all of these stores have it.
        partitions: of each entry.
    """
    keys, values = without_places(family, found)
    if family.multi:
        values, counts = split_lists(values)
        of = [n for n, count in enumerate(counts) for _ in range(count)]
        keys, partitions = [keys[n] for n in of], [partitions[n] for n in of]
    return _decoded(selection, schema, partitions, family, keys, values, raw=False)


def without_places(
    family: ColumnFamily, found: Sequence[tuple[bytes, bytes]]
) -> tuple[list[bytes], list[bytes]]:
    """Return the keys of entries without slot and column family, and their values."""
    end = -SLOT_BYTES if family.spans_key_groups else None
    return [key[PHYSICAL_PREFIX_BYTES:end] for key, _ in found], [value for _, value in found]


def _stored(
    selection: Selection, batch_rows: int, partitions: Collection[int] | None, few: bool
) -> Iterator[tuple[int, ColumnFamily, list[bytes], list[bytes]]]:
    """Yield the wanted rows, some at a time: partition, column family, keys without slot and column
    family, single values.
    """
    if selection.tables is not None:
        yield from _from_tables(selection, selection.tables, batch_rows, partitions)
        return
    for partition, version, family in selection.versions(partitions):
        if family is None:
            continue
        check_supported(family, selection.schema)
        number = family.id.to_bytes(2, "big")
        with entries(version, few=few) as found:
            mine = (entry for entry in found if entry[0][2:PHYSICAL_PREFIX_BYTES] == number)
            for part in _parts(family, mine, batch_rows):
                yield partition, family, *without_places(family, part)


def _parts(
    family: ColumnFamily, found: Iterable[tuple[bytes, bytes]], rows: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield keys and single values, at most so many rows at a time."""
    if not family.multi:
        yield from chunks_of(found, pair_bytes, rows=rows)
        return
    # As `chunks_of`, in two thirds of the time, as without chunks: a key has many of them.
    part: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in found:
        for single in single_values(value):
            part.append((key, single))
            size_bytes += len(key) + len(single)
            if len(part) == rows or size_bytes >= CHUNK_BYTES:
                yield part
                part, size_bytes = [], 0
    if part:
        yield part


def _from_tables(
    selection: Selection,
    index: SavepointIndex,
    batch_rows: int,
    partitions: Collection[int] | None,
) -> Iterator[tuple[int, ColumnFamily, list[bytes], list[bytes]]]:
    # Start-up time: it loads pyarrow.parquet, which only canonical savepoints need.
    from millpond.state.canonical import CanonicalRows

    source = CanonicalRows(selection.storage, index)
    for table in index.tables:
        place = (table.store.operator, table.store.name, table.family.name)
        mine = place == (selection.operator.operator, selection.store, selection.family)
        if mine and (partitions is None or table.store.partition in partitions):
            check_supported(table.family, selection.schema)
            stored = (zip(r.keys, r.values, strict=True) for r in source.table_rows(table))
            for part in _parts(table.family, chain.from_iterable(stored), batch_rows):
                keys, values = [key for key, _ in part], [value for _, value in part]
                yield table.store.partition, table.family, keys, values


def key_value(schema: Struct, name: str, value: object, shown: Mapping[str, str]) -> Any:
    """Return a value of a key's column as a `pyarrow.Scalar` of its type.

    Args:
        name: of the column, as it is stored; a nested one with dots.
        value: a text stands for the value that it names, as on the command line; for bytes it is
            their base64, as in all that is shown, for a list its JSON. A number is the seconds of a
            duration.
        shown: names of columns for the user, by stored names.
    Raises: InvalidInputError: INVALID_ARGUMENT: no such column, or the value is of another type.
    """
    kind = struct_type(schema)
    path = path_of(kind, name)
    if path is None:
        there = ", ".join(shown.get(n, n) for n in schema.distinct_names) or "none"
        raise InvalidInputError(
            f"no key column {name!r}; there are: {there}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=key_hint(schema, shown),
        )
    for part in path:
        kind = kind.field(part).type
    try:
        if isinstance(value, str) and pa.types.is_binary(kind):
            return pa.scalar(base64.b64decode(value.encode("ascii"), validate=True), kind)
        if isinstance(value, str) and pa.types.is_list(kind):
            return list_of(json.loads(value), kind)
        return scalar_of(value, kind)
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowTypeError,
        OverflowError,
        TypeError,  # of types of numpy
        ValueError,  # of base64, of JSON and of times, too
    ) as e:
        raise InvalidInputError(
            f"key column {name!r} is {kind}, which {value!r} is not",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=key_hint(schema, shown),
        ) from e


def equals(column: Any, wanted: Any) -> Any:
    """Return where a `pyarrow.Array` has a value as Spark groups by it: null is like null, NaN like
    NaN, -0.0 like 0.0.

    Args:
        wanted: a `pyarrow.Scalar` of the column's type.
    """
    if not wanted.is_valid:
        return pc.is_null(column)
    if pa.types.is_nested(wanted.type):  # Arrow has no kernel for these
        (bits,) = _grouped_bits(pa.repeat(wanted, 1))
        return pa.array([one.equals(bits) for one in _grouped_bits(column)], pa.bool_())
    if pa.types.is_floating(wanted.type) and math.isnan(wanted.as_py()):
        return pc.fill_null(pc.is_nan(column), False)
    return pc.fill_null(pc.equal(column, wanted), False)


def _grouped_bits(array: Any) -> Any:
    """Return an array that has whole numbers in place of all others: equal ones where Spark takes
    them for one. To Arrow NaN inside of a value is not like NaN.
    """

    def bits(inner: Any) -> Any:
        if not pa.types.is_floating(inner.type):
            return inner
        return inner.view(pa.int32() if pa.types.is_float32(inner.type) else pa.int64())

    return mapped(as_grouped(array), bits)


class Filter:
    """Decides which rows have one of the wanted keys."""

    def __init__(self, keys: Keys, schema: Struct, names: Mapping[str, str] | None = None) -> None:
        self._schema = schema
        self._encoded: Any = None
        self._alternatives: list[dict[str, Any]] = []
        shown = names or {}  # a join's own column names, by those that are stored
        if isinstance(keys, pa.Table | pa.RecordBatch):
            stored = {new: old for old, new in shown.items()}
            keys = keys.rename_columns([stored.get(n, n) for n in keys.schema.names])
            batch = keys.combine_chunks().to_batches() if isinstance(keys, pa.Table) else [keys]
            rows = [_grouped_bytes(part, schema) for part in batch]
            self._encoded = pa.concat_arrays(rows) if rows else pa.array([], pa.binary())
            return
        for wanted in [keys] if isinstance(keys, Mapping) else keys:
            places = places_of(wanted, schema.distinct_names, shown)
            self._alternatives.append(
                {at: key_value(schema, at, value, shown) for at, value in places.items()}
            )

    def mask(self, keys: Any) -> Any:
        """Return a bool for each key."""
        if self._encoded is not None:
            return pc.is_in(_grouped_bytes(keys, self._schema), value_set=self._encoded)
        result = pa.array([False] * len(keys), pa.bool_())
        for wanted in self._alternatives:
            both = pa.array([True] * len(keys), pa.bool_())
            for name, scalar in wanted.items():
                column = pc.struct_field(keys, path_of(keys.type, name))
                both = pc.and_(both, equals(column, scalar))
            result = pc.or_(result, both)
        return result


def _grouped_bytes(keys: Any, schema: Struct) -> Any:
    """Return keys as bytes that are equal where `equals` says so."""
    return encode_rows(as_grouped(conform(keys, schema)), schema)
