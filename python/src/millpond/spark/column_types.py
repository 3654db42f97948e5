"""The types of columns as Spark's schemas write them, in a form that can be compared (pure).

A type is Spark's name of it, or for a nested one a tuple: `("struct", columns)`,
`("array", element)`, `("map", key, value)`.
"""

from __future__ import annotations

from typing import Any

Columns = tuple[tuple[str, Any], ...]
"""Name and type of each column."""


def columns_of(struct: Any) -> Columns:
    """Return the columns of a struct.

    Args:
        struct: parsed from Spark's JSON.
    Raises: KeyError, TypeError: it is none that Spark writes.
    """
    return tuple((str(field["name"]), type_of(field["type"])) for field in struct["fields"])


def type_of(kind: Any) -> Any:
    """Return a type. Args, Raises: as `columns_of`."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return ("struct", columns_of(kind))
    inner = [part for part in ("elementType", "keyType", "valueType", "sqlType") if part in kind]
    return (kind["type"], *(type_of(kind[part]) for part in inner))


def without_names(columns: Columns) -> object:
    """Return what Spark compares: the types of columns in their order."""
    return tuple(bare_type(kind) for _, kind in columns)


def bare_type(kind: Any) -> object:
    """Return a type without the names of the fields in it."""
    if isinstance(kind, str):
        return kind
    if kind[0] == "struct":
        return ("struct", without_names(kind[1]))
    return (kind[0], *map(bare_type, kind[1:]))


def is_struct(kind: object) -> bool:
    """Return whether a type, parsed from Spark's JSON, is a struct."""
    return isinstance(kind, dict) and kind["type"] == "struct"
