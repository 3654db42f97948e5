"""Spark's types, parsed from the JSON in Spark's state schema files. Pure, without Arrow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from millpond.errors import ErrorKind, FormatError, UnsupportedError

# JSON name -> bytes of a value as an element of an array. For any other type the array has an
# 8-byte word, and the value lies behind it.
FIXED_BYTES = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "date": 4,
    "float": 4,
    "year_month_interval": 4,
    "long": 8,
    "double": 8,
    "timestamp": 8,
    "timestamp_ntz": 8,
    "time": 8,
    "day_time_interval": 8,
    "void": 8,
}
VARIABLE = frozenset({"string", "binary", "variant", "calendar_interval", "geometry"})
MAX_LONG_PRECISION = 18  # up to this precision a decimal's unscaled value fits 8 bytes

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_ALIASES = {
    "null": "void",
    "NullType": "void",
    "interval": "calendar_interval",
    "decimal": "decimal(10,0)",
}


@dataclass(frozen=True, slots=True)
class Atom:
    """A type without parts: a key of `FIXED_BYTES`, or one of `VARIABLE`."""

    name: str


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal. Spark keeps it as a long up to a precision of 18, else as Java's BigInteger."""

    precision: int
    scale: int

    @property
    def is_long(self) -> bool:
        return self.precision <= MAX_LONG_PRECISION


@dataclass(frozen=True, slots=True)
class Array:
    element: SparkType


@dataclass(frozen=True, slots=True)
class Map:
    key: SparkType
    value: SparkType


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: SparkType


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct, and the type of a whole key or value row."""

    fields: tuple[Field, ...]

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    @property
    def distinct_names(self) -> list[str]:
        """The names by which users see the columns, and name them. As `unique_names`."""
        return unique_names(self.names)

    @property
    def columns(self) -> list[tuple[str, SparkType]]:
        """The distinct name and the type of each column."""
        return [
            (name, field.type) for name, field in zip(self.distinct_names, self.fields, strict=True)
        ]


SparkType = Atom | Decimal | Array | Map | Struct


def unique_names(given: Sequence[str]) -> list[str]:
    """Return names of columns of which none comes twice.

    Spark allows a name twice, most readers do not. So the second `k` is called `k_2`.
    """
    names: list[str] = []
    taken = set(given)
    for one in given:
        name, number = one, 1
        while name in names or (number > 1 and name in taken):
            number += 1
            name = f"{one}_{number}"
        names.append(name)
    return names


def element_bytes(kind: SparkType) -> int:
    """Return how many bytes an element has in the fixed part of an array: 1, 2, 4 or 8."""
    return FIXED_BYTES.get(kind.name, 8) if isinstance(kind, Atom) else 8


def type_text(kind: SparkType) -> str:
    """Return a type for people, as Spark's SQL writes it: `map<string,array<long>>`."""
    match kind:
        case Atom():
            return kind.name
        case Decimal():
            return f"decimal({kind.precision},{kind.scale})"
        case Array():
            return f"array<{type_text(kind.element)}>"
        case Map():
            return f"map<{type_text(kind.key)},{type_text(kind.value)}>"
    inner = ",".join(f"{field.name}:{type_text(field.type)}" for field in kind.fields)
    return f"struct<{inner}>"


def parse_schema(text: str, *, name: str) -> Struct:
    """Return the struct that the JSON of a Spark `StructType` describes.

    Args:
        text: the JSON.
        name: of the file, for messages.
    Raises:
        FormatError: FORMAT_DAMAGED.
        UnsupportedError: UNSUPPORTED: this version does not know a type.
    """
    try:
        kind = parse_type(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FormatError(f"{name}: no schema of Spark: {e}", kind=ErrorKind.FORMAT_DAMAGED) from e
    if not isinstance(kind, Struct):
        raise FormatError(
            f"{name}: the schema of a row is no struct", kind=ErrorKind.FORMAT_DAMAGED
        )
    return kind


def parse_type(value: object) -> SparkType:
    """Return the type that a value of Spark's JSON describes.

    Raises: UnsupportedError: UNSUPPORTED: this version does not know it. TypeError, KeyError: it is
        no type.
    """
    if isinstance(value, str):
        return _named(value)
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no type")
    match value["type"]:
        case "struct":
            return Struct(
                tuple(
                    Field(str(field["name"]), parse_type(field["type"]))
                    for field in value["fields"]
                )
            )
        case "array":
            return Array(parse_type(value["elementType"]))
        case "map":
            return Map(parse_type(value["keyType"]), parse_type(value["valueType"]))
        case "udt":
            return parse_type(value["sqlType"])
    raise TypeError(f"{value['type']!r} is no type")


def _named(name: str) -> SparkType:
    name = _ALIASES.get(name, name)
    if match := _DECIMAL.fullmatch(name):
        return Decimal(int(match[1]), int(match[2]))
    if name in FIXED_BYTES or name in VARIABLE:
        return Atom(name)
    first = re.split(r"[ (]", name, maxsplit=1)[0]
    if first in ("string", "char", "varchar"):
        return Atom("string")  # a collation changes how strings compare, not their bytes
    if first in ("geometry", "geography"):
        return Atom("geometry")  # the bytes say which reference system they use
    if first == "time":
        return Atom("time")
    if first == "interval":
        return Atom(
            "year_month_interval" if re.search(r"\b(year|month)\b", name) else "day_time_interval"
        )
    raise UnsupportedError(f"Spark's type {name!r} is not known to this version of millpond")
