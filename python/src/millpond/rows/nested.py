"""Takes nested Arrow arrays apart and puts them together again. Needs the extra `tools`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import ErrorKind, InvalidInputError


def fitted(array: Any, target: Any, name: str, *, exact: bool) -> Any:
    """Return `array` as an array of exactly the type `target`. No value changes.

    This takes fields of structs by name, at every depth. It casts a value only if the value comes
    back equal.

    Args:
        name: of the column, for messages.
        exact: True: a struct may have no other fields than `target`. Inner structs never may.
    Raises: InvalidInputError: INVALID_ARGUMENT: a field is missing, superfluous or does not fit.
    """
    if array.type.equals(target):
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if pa.types.is_struct(target):
        return _struct(array, target, name, exact)
    if pa.types.is_map(target):
        return _map(array, target, name)
    if pa.types.is_list(target):
        return _list(array, target, name)
    return _leaf(array, target, name)


def _refused(name: str, kind: Any, target: Any, why: object = "") -> InvalidInputError:
    because = f": {why}" if why else ""
    return InvalidInputError(
        f"column {name!r} is {kind}, which is no {target}{because}",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="`millpond state list` shows the type of each column; cast the column to it.",
    )


def _struct(array: Any, target: Any, name: str, exact: bool) -> Any:
    if not pa.types.is_struct(array.type):
        raise _refused(name, array.type, target)
    there = [field.name for field in array.type]
    wanted = [field.name for field in target]
    for field in wanted:
        if there.count(field) != 1:
            what = "no" if field not in there else "more than one"
            raise InvalidInputError(
                f"{what} column {_below(name, field)!r}; there are: {', '.join(there)}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="`millpond state list` shows the columns that the state has, and needs.",
            )
    if exact and (more := [field for field in there if field not in wanted]):
        raise InvalidInputError(
            f"the state has no column {_below(name, more[0])!r}; it has: {', '.join(wanted)}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave that column out: `millpond state list` shows those that the state has.",
        )
    columns = [
        fitted(array.field(f.name), f.type, _below(name, f.name), exact=True) for f in target
    ]
    if not columns:
        return pa.array(
            [None if missing else {} for missing in array.is_null().to_pylist()], target
        )
    return pa.StructArray.from_arrays(columns, fields=list(target), mask=_mask(array))


def _below(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _mask(array: Any) -> Any:
    return array.is_null() if array.null_count else None


def _offsets(array: Any) -> Any:
    counts = pc.fill_null(pc.list_value_length(array), 0)
    ends = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(counts.to_numpy(zero_copy_only=False), out=ends[1:])
    return pa.array(ends, pa.int32())


def _is_list(kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _list(array: Any, target: Any, name: str) -> Any:
    if not _is_list(array.type):
        raise _refused(name, array.type, target)
    values = fitted(array.flatten(), target.value_type, f"{name}[]", exact=True)
    return pa.ListArray.from_arrays(_offsets(array), values, type=target, mask=_mask(array))


def _entries(array: Any) -> tuple[Any, Any, Any]:
    """Return offsets, keys and items of a map."""
    array = pa.concat_arrays([array]) if array.offset else array
    offsets = np.asarray(array.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    return pa.array(offsets - first, pa.int32()), array.keys[first:last], array.items[first:last]


def _map(array: Any, target: Any, name: str) -> Any:
    if not pa.types.is_map(array.type):
        raise _refused(name, array.type, target)
    offsets, keys, items = _entries(array)
    keys = fitted(keys, target.key_type, f"{name}.key", exact=True)
    items = fitted(items, target.item_type, f"{name}.value", exact=True)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=_mask(array))


def _leaf(array: Any, target: Any, name: str) -> Any:
    if array.null_count < len(array) and (why := _unclear(array.type, target)):
        raise _refused(name, array.type, target, why)
    try:
        cast = array.cast(target, safe=True)
        back = cast.cast(array.type, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise _refused(name, array.type, target, e) from e
    same = pc.fill_null(pc.equal(back, array), False)
    both_null = pc.and_(array.is_null(), cast.is_null())
    same = pc.or_(same, both_null)
    if pa.types.is_floating(array.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(array), pc.is_nan(back)), False))
    if same.false_count:
        raise _refused(name, array.type, target, f"{same.false_count} values would be changed")
    return cast


def _unclear(kind: Any, target: Any) -> str:
    """Return what nobody can know of values of `kind` that are to be of `target`; "" if all is
    clear. Arrow takes them in silence, and they come back equal.
    """
    if any(is_number(a) and pa.types.is_temporal(b) for a, b in ((kind, target), (target, kind))):
        return "nobody can know of which unit the number is"
    if not (_has_time(kind) and _has_time(target)) or _has_zone(kind) == _has_zone(target):
        return ""
    if _has_zone(kind):
        return "nobody can know whose clock is meant"
    return "nobody can know of which zone it is"


def is_number(kind: Any) -> bool:
    """Return whether a type is one of numbers, whole or not."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _has_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _has_zone(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def mapped(array: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each inner array that is not nested, and return the whole.

    Args:
        change: returns the very array that it is given if nothing is to change.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        before = [array.field(i) for i in range(kind.num_fields)]
        columns = [mapped(column, change) for column in before]
        if all(now is then for now, then in zip(columns, before, strict=True)):
            return array
        fields = [pa.field(f.name, c.type) for f, c in zip(kind, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=_mask(array))
    if pa.types.is_map(kind):
        offsets, keys, items = _entries(array)
        new_keys, new_items = mapped(keys, change), mapped(items, change)
        if new_keys is keys and new_items is items:
            return array
        return pa.MapArray.from_arrays(
            offsets,
            new_keys,
            new_items,
            type=pa.map_(new_keys.type, new_items.type),
            mask=_mask(array),
        )
    if _is_list(kind):
        values = array.flatten()
        changed = mapped(values, change)
        if changed is values:
            return array
        return pa.ListArray.from_arrays(_offsets(array), changed, mask=_mask(array))
    return change(array)


def as_grouped(array: Any) -> Any:
    """Return an array in which each number is the one that stands for it where Spark groups: there
    is one zero and one NaN, though there are several in bits.
    """
    return mapped(array, _as_grouped)


def _as_grouped(array: Any) -> Any:
    if not pa.types.is_floating(array.type):
        return array
    # A scalar of Python's would make doubles of all floats.
    zero, nan = (pa.scalar(number, array.type) for number in (0.0, math.nan))
    return pc.if_else(pc.is_nan(array), nan, pc.add(array, zero))
