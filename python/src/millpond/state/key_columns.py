"""Takes keys that a user gives apart into columns, and puts columns together.

Needs the extra `tools`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

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


def rows_of_columns(columns: Struct, outer: str, given: Mapping[str, Any], count: int) -> Any:
    """Return a `pyarrow.StructArray` of `count` rows; None: a column is not given."""
    arrays = []
    for name, field in zip(columns.distinct_names, columns.fields, strict=True):
        place = outer + name
        if place in given:
            arrays.append(given[place])
        elif isinstance(field.type, Struct):
            arrays.append(rows_of_columns(field.type, f"{place}.", given, count))
        else:
            return None
    if any(array is None for array in arrays):
        return None
    if not arrays:
        return pa.array([{}] * count, struct_type(columns))
    return pa.StructArray.from_arrays(arrays, fields=list(struct_type(columns)))


def names_of(columns: Struct, outer: str = "") -> Iterator[str]:
    """Yield the names of columns; of a struct those of its columns."""
    for name, field in zip(columns.distinct_names, columns.fields, strict=True):
        if isinstance(field.type, Struct):
            yield from names_of(field.type, f"{outer}{name}.")
        else:
            yield f"{outer}{name}"
