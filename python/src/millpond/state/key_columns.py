"""Takes keys that a user gives apart into columns, and puts columns together.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.spark.types import Struct
from millpond.state.lookups import Key


def leaves(key: Key, outer: str = "") -> Iterator[tuple[str, object]]:
    """Yield the columns of a key with their values; nested ones with dots."""
    for name, value in key.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def first_name(place: str, names: Iterable[str]) -> tuple[str, str]:
    """Return the name of a column, and what names a part of it ("" if nothing does).

    A column's own name may have dots: the longest of `names` with which `place` begins counts.
    """
    fitting = [name for name in names if place == name or place.startswith(f"{name}.")]
    if not fitting:
        top, _, rest = place.partition(".")
        return top, rest
    top = max(fitting, key=len)
    return top, place[len(top) + 1 :]


def places_of(key: Key, columns: Sequence[str], shown: Mapping[str, str]) -> dict[str, object]:
    """Return the values of a key by place: the stored name of a column, nested with dots.

    Args:
        columns: the stored names.
        shown: names of columns for the user, by stored names.
    Raises: InvalidInputError: INVALID_ARGUMENT: a column is given twice, by two of its names.
    """
    places: dict[str, object] = {}
    names = [*columns, *shown.values()]
    for name, value in leaves(key):
        top, rest = first_name(name, names)
        if top not in columns:  # a stored name, or one for the user
            top = next((old for old, new in shown.items() if new == top), top)
        place = f"{top}.{rest}" if rest else top
        if place in places:
            raise given_twice(name)
        places[place] = value
    return places


def given_twice(name: str) -> InvalidInputError:
    """Return the error for a key that gives the column `name` by two of its names."""
    return InvalidInputError(
        f"the key gives column {name!r} twice, once by another name",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Give each column once, by the name that `millpond state list` shows.",
    )


def path_of(kind: Any, place: str) -> list[str] | None:
    """Return the names of the fields that lead to a column in a `pyarrow.StructType`; None: there
    is no such column.
    """
    if not pa.types.is_struct(kind):
        return None
    top, rest = first_name(place, [field.name for field in kind])
    number = kind.get_field_index(top)
    if number < 0 or not rest:
        return [top] if number >= 0 else None
    inner = path_of(kind[number].type, rest)
    return None if inner is None else [top, *inner]


def rows_of_columns(columns: Struct, outer: str, given: Mapping[str, Any], count: int) -> Any:
    """Return a `pyarrow.StructArray` of `count` rows; None: a column is not given."""
    arrays = []
    for name, kind in columns.columns:
        place = outer + name
        if place in given:
            arrays.append(given[place])
        elif isinstance(kind, Struct):
            arrays.append(rows_of_columns(kind, f"{place}.", given, count))
        else:
            return None
    if any(array is None for array in arrays):
        return None
    if not arrays:
        return pa.array([{}] * count, struct_type(columns))
    return pa.StructArray.from_arrays(arrays, fields=list(struct_type(columns)))


def names_of(columns: Struct, outer: str = "") -> Iterator[str]:
    """Yield the names of columns; of a struct those of its columns."""
    for name, kind in columns.columns:
        if isinstance(kind, Struct):
            yield from names_of(kind, f"{outer}{name}.")
        else:
            yield f"{outer}{name}"
