"""Which state travels in bulk: rows of plain types, which are the same in Python and in the JVM.

Spark sends a value through a pickle, a row of the JVM and an encoder, and back. What comes back is
known without that only for some types, and only for values of exactly the right Python type. All
else goes through Spark's own calls.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Value = tuple[Any, ...]
# The calendars of Python and of the JVM's older classes agree here.
_FIRST_YEAR, _LAST_YEAR = 1902, 2200
# In native order: any other refuses what is too large.
_FLOAT = struct.Struct("f")
# Not the user's context, which may have fewer digits.
_EXACT = decimal.Context(prec=80, traps=[])


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which the JVM replaces
        return False
    return True


def _is_date(value: Any) -> bool:
    return type(value) is datetime.date and _FIRST_YEAR <= value.year <= _LAST_YEAR


def _is_time(value: Any) -> bool:
    return type(value) is datetime.datetime and _FIRST_YEAR <= value.year <= _LAST_YEAR


def _as_float(value: float) -> float:
    """Return the nearest float of four bytes, as the JVM does: infinity beyond the largest."""
    found: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return found


def _is_decimal(value: Any, precision: int, scale: int) -> bool:
    """Return whether `value` needs no rounding, and has no more digits than there is room for."""
    if type(value) is not decimal.Decimal or not value.is_finite():
        return False
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # it is a text for what is not finite
    if not value:
        return sign == 0 and -scale <= exponent <= 0
    return exponent >= -scale and len(digits) + exponent <= precision - scale


def _as_decimal(value: decimal.Decimal, scale: int) -> decimal.Decimal:
    return value.quantize(decimal.Decimal((0, (1,), -scale)), context=_EXACT)


@dataclass(frozen=True)
class _Kind:
    """A plain type, as expressions over a value that is not null and over its type.

    Attributes:
        test: whether the value is known.
        kept: what Spark would pickle of it; empty: the value itself.
        shown: what users read, from the pickled form; empty: the same.
    """

    test: str
    kept: str = ""
    shown: str = ""


def _integer(bits: int) -> _Kind:
    return _Kind(f"type({{0}}) is int and {-(1 << bits - 1)} <= {{0}} < {1 << bits - 1}")


def _internal(test: str) -> _Kind:
    """Return the kind of a type that PySpark itself pickles in another form."""
    return _Kind(test, "{1}.toInternal({0})", "{1}.fromInternal({0})")


_KINDS: dict[type[Any], _Kind] = {
    BooleanType: _Kind("type({0}) is bool"),
    ByteType: _integer(8),
    ShortType: _integer(16),
    IntegerType: _integer(32),
    LongType: _integer(64),
    FloatType: _Kind("type({0}) is float", "_as_float({0})"),
    DoubleType: _Kind("type({0}) is float"),
    DecimalType: _Kind("_is_decimal({0}, {1}.precision, {1}.scale)", "_as_decimal({0}, {1}.scale)"),
    StringType: _Kind("_is_text({0})"),
    BinaryType: _Kind("type({0}) in (bytes, bytearray)", "bytes({0})"),
    DateType: _internal("_is_date({0})"),
    TimestampType: _internal("_is_time({0})"),
    TimestampNTZType: _internal("_is_time({0})"),
}
_HELPERS: dict[str, Any] = {
    "_is_text": _is_text,
    "_is_date": _is_date,
    "_is_time": _is_time,
    "_is_decimal": _is_decimal,
    "_as_float": _as_float,
    "_as_decimal": _as_decimal,
}


def _kind(data_type: DataType) -> _Kind | None:
    """Return what is known of the type; None: it is not plain."""
    if isinstance(data_type, StringType) and data_type != StringType():
        return None  # it has a collation
    return _KINDS.get(type(data_type))


def is_plain(schema: StructType, *, as_key: bool = False) -> bool:
    """Return whether rows of `schema` may travel in bulk.

    Args:
        as_key: whether they are keys of a map. Zero has two forms as a floating point number,
            which Python takes for equal, and the JVM does not.
    """
    return len(schema) > 0 and all(
        _kind(field.dataType) is not None
        and not (as_key and isinstance(field.dataType, (DoubleType, FloatType)))
        for field in schema
    )


def _function(body: str, schema: StructType) -> Callable[[Any], Any]:
    """Return a function of `v`. It is made as source because it runs for each value."""
    types = {f"type{i}": field.dataType for i, field in enumerate(schema)}
    found: Callable[[Any], Any] = eval(f"lambda v: {body}", _HELPERS | types)
    return found


def _expressions(schema: StructType, part: str) -> list[str]:
    """Return that part of each column's kind, over the columns of the row `v`."""
    found = []
    for i, field in enumerate(schema):
        kind = _kind(field.dataType)
        assert kind is not None
        found.append(getattr(kind, part).format(f"v[{i}]", f"type{i}"))
    return found


def _changed(schema: StructType, part: str) -> str | None:
    """Return an expression for `v` with its values changed; None: they stay as they are."""
    changes = _expressions(schema, part)
    if not any(changes):
        return None
    values = [
        f"None if v[{i}] is None else {change}" if change else f"v[{i}]"
        for i, change in enumerate(changes)
    ]
    return f"({', '.join(values)},)"


def checker(schema: StructType) -> Callable[[Any], Value | None]:
    """Return a function from a user's value to what Spark would pickle of it.

    The function returns None for what it does not know for certain.
    """
    tests = [
        f"(v[{i}] is None or {test})" if field.nullable else f"({test})"
        for i, (field, test) in enumerate(zip(schema, _expressions(schema, "test"), strict=True))
    ]
    return _function(
        f"{_changed(schema, 'kept') or 'v'} if type(v) is tuple and len(v) == {len(schema)}"
        f" and {' and '.join(tests)} else None",
        schema,
    )


def reader(schema: StructType) -> Callable[[Value], Value] | None:
    """Return the function from the pickled form to what users see; None: they are the same."""
    changed = _changed(schema, "shown")
    return None if changed is None else _function(changed, schema)
