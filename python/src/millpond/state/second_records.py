"""What Spark keeps twice: all rows of some column families follow from those of another. When the
other one is edited, they are computed anew.

    of                      family                    what it says
    ----------------------  ------------------------  ----------------------------------------------
    state variable, list    $rowCounter_<name>        how many elements the list has
    the same, with TTL      $ttl_<name>, $min_<name>  when its first element ends, by time and key
                            $count_<name>             how many elements it has
    value or map, with TTL  $ttl_<name>               when each row expires, by time
    timers                  ..Timers_timestampToKey   the timers of ..Timers_keyToTimestamp, by time
    join, formats 1 to 3    <side>-keyToNumValues     how many rows <side>-keyWithIndexToValue has
    join, format 4          <side>-tsWithKey          the keys of <side>-keyWithTsToValues, by time

Source: TTLState, ListStateMetricsImpl, TimerStateImpl and SymmetricHashJoinStateManager of Spark
4.3.0. Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.model.ids import DEFAULT_STORE
from millpond.model.partition_keys import TRANSFORM_WITH_STATE_OPERATORS
from millpond.rows.arrow_types import struct_type
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.state_schemas import FamilySchema

JOIN = "symmetricHashJoin"
_INDEXED, _COUNTED = "keyWithIndexToValue", "keyToNumValues"
_TIMED, _BY_TIME = "keyWithTsToValues", "tsWithKey"
_TIMERS, _TIMERS_BY_TIME = "_keyToTimestamp", "_timestampToKey"
_EXPIRY, _FIRST_EXPIRY, _COUNT, _ROW_COUNT = "$ttl_", "$min_", "$count_", "$rowCounter_"
_EXPIRES = "ttlExpirationMs"


@dataclass(frozen=True, slots=True)
class Second:
    """A column family that follows from another.

    kind: how it follows; one of the constants above.
    """

    store: str
    family: str
    kind: str

    @property
    def only_by_need(self) -> bool:
        """Whether Spark may leave it out: a join without event time looks up nothing by time."""
        return self.kind == _BY_TIME


def second_records(
    info: OperatorInfo, store: str, family: str, families: Collection[str]
) -> tuple[Second, ...]:
    """Return the column families that follow from `family` (pure).

    Args:
        families: those of `store`.
    Raises: UnsupportedError: `family` follows from another one, which must be edited instead.
    """
    if info.name == JOIN:
        return _of_join(info, store, family)
    if info.name not in TRANSFORM_WITH_STATE_OPERATORS:
        return ()
    if family.endswith(_TIMERS) and family.startswith("$"):
        return (Second(store, family.removesuffix(_TIMERS) + _TIMERS_BY_TIME, _TIMERS_BY_TIME),)
    if family.endswith(_TIMERS_BY_TIME) and family.startswith("$"):
        raise _follows(info, family, family.removesuffix(_TIMERS_BY_TIME) + _TIMERS)
    for prefix in (_EXPIRY, _FIRST_EXPIRY, _COUNT, _ROW_COUNT):
        if family.startswith(prefix):
            raise _follows(info, family, family.removeprefix(prefix))
    # For a list with TTL, Spark's schema also names a counter of rows. Spark writes nothing there.
    counts = _COUNT if _COUNT + family in families else _ROW_COUNT
    kinds = (_EXPIRY, _FIRST_EXPIRY, counts)
    return tuple(Second(store, kind + family, kind) for kind in kinds if kind + family in families)


def _of_join(info: OperatorInfo, store: str, family: str) -> tuple[Second, ...]:
    in_stores = family == DEFAULT_STORE  # formats 1 and 2: a store each, and no column families
    name = store if in_stores else family
    side, _, what = name.partition("-")
    if what in (_COUNTED, _BY_TIME):
        raise _follows(info, name, f"{side}-{_INDEXED if what == _COUNTED else _TIMED}")
    if what == _INDEXED:
        second = f"{side}-{_COUNTED}"
        return (
            (
                Second(second, DEFAULT_STORE, _COUNTED)
                if in_stores
                else Second(store, second, _COUNTED)
            ),
        )
    return (Second(store, f"{side}-{_BY_TIME}", _BY_TIME),) if what == _TIMED else ()


def _follows(info: OperatorInfo, family: str, first: str) -> UnsupportedError:
    return UnsupportedError(
        f"{family!r} of {info.name} cannot be edited: its rows follow from those of {first!r}",
        hint=f"Edit {first!r}: {family!r} is then made anew.",
    )


def numbered(seconds: Collection[Second]) -> bool:
    """Whether the last column of the edited family's keys numbers the rows of a key, from 0.

    Then these numbers are computed anew too.
    """
    return any(second.kind == _COUNTED for second in seconds)


def rows_of(second: Second, keys: Any, values: Any, schema: FamilySchema) -> tuple[Any, Any]:
    """Return keys and values of the rows that follow from some rows.

    Args:
        keys, values: of the edited column family, one row each; no list is empty.
        schema: of the column family that follows.
    Returns: `pyarrow` arrays of structs, or of lists of structs.
    Raises: InvalidInputError: INVALID_ARGUMENT: a time at which a row expires is null.
    """
    key_type, value_type = struct_type(schema.key), struct_type(schema.value)
    if second.kind == _TIMERS_BY_TIME:
        return _struct(key_type, [keys.field(1), keys.field(0)]), _nothing(value_type, len(keys))
    if second.kind == _BY_TIME:  # a list of empty values, one for each row
        counts = np.asarray(pc.list_value_length(values), dtype=np.int64)
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        return keys, pa.ListArray.from_arrays(ends, _nothing(value_type, int(counts.sum())))
    if second.kind in (_COUNT, _ROW_COUNT):
        return keys, _struct(value_type, [pc.list_value_length(values)])
    expires = _first_expiry(values)
    if second.kind == _FIRST_EXPIRY:
        return keys, _struct(value_type, [expires])
    return _struct(key_type, [expires, keys]), _nothing(value_type, len(keys))


def counts_of(keys: Any, counts: Any, schema: FamilySchema) -> tuple[Any, Any]:
    """Return keys and values of the rows that say how many rows of a join each key has.

    Args:
        keys: of the numbered rows; their last column, the number, is left out.
        counts: how many rows each key has.
    """
    key_type = struct_type(schema.key)
    return _struct(key_type, [keys.field(i) for i in range(len(key_type))]), _struct(
        struct_type(schema.value), [pa.array(counts)]
    )


def _first_expiry(values: Any) -> Any:
    lists = pa.types.is_list(values.type)
    times = pc.struct_field(values.flatten() if lists else values, _EXPIRES)
    if times.null_count:
        raise InvalidInputError(
            f"{_EXPIRES} is null",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Keep the expiry that each row had, or set one.",
        )
    if not lists or not len(values):
        return times if not lists else pa.array([], pa.int64())
    starts = np.cumsum(np.concatenate([[0], pc.list_value_length(values).to_numpy()[:-1]]))
    return pa.array(np.minimum.reduceat(times.to_numpy(), starts))


def _struct(kind: Any, columns: list[Any]) -> Any:
    cast = [
        column if column.type.equals(f.type) else column.cast(f.type)
        for column, f in zip(columns, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(cast, fields=list(kind))


def _nothing(kind: Any, count: int) -> Any:
    return _struct(kind, [pa.nulls(count, field.type) for field in kind])
