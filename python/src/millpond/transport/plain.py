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
_INTEGERS: dict[type[Any], int] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
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


_TIME = _Kind("_is_time({0})", "{1}.toInternal({0})", "{1}.fromInternal({0})")
_KINDS: dict[type[Any], _Kind] = {
    **{
        kind: _Kind(f"type({{0}}) is int and {-(1 << bits - 1)} <= {{0}} < {1 << bits - 1}")
        for kind, bits in _INTEGERS.items()
    },
    BooleanType: _Kind("type({0}) is bool"),
    DoubleType: _Kind("type({0}) is float"),
    FloatType: _Kind("type({0}) is float", "_as_float({0})"),
    DecimalType: _Kind("_is_decimal({0}, {1}.precision, {1}.scale)", "_as_decimal({0}, {1}.scale)"),
    BinaryType: _Kind("type({0}) in (bytes, bytearray)", "bytes({0})"),
    DateType: _Kind("_is_date({0})", "{1}.toInternal({0})", "{1}.fromInternal({0})"),
    TimestampType: _TIME,
    TimestampNTZType: _TIME,
}
_HELPERS = {f.__name__: f for f in (_is_text, _is_date, _is_time, _is_decimal)} | {
    f.__name__: f for f in (_as_float, _as_decimal)
}


def _kind(data_type: DataType) -> _Kind | None:
    """Return what is known of the type; None: it is not plain."""
    if isinstance(data_type, StringType):
        return _Kind("_is_text({0})") if data_type == StringType() else None
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


def _tuple(schema: StructType, part: str) -> str:
    """Return an expression for a row whose values go through an expression of their kind."""
    values = []
    for i, field in enumerate(schema):
        kind = _kind(field.dataType)
        assert kind is not None
        found = getattr(kind, part).format(f"v[{i}]", f"type{i}")
        values.append(f"None if v[{i}] is None else {found}" if found else f"v[{i}]")
    return f"({', '.join(values)},)"


def _changes(schema: StructType, part: str) -> bool:
    return any(getattr(_kind(field.dataType), part) for field in schema)


def checker(schema: StructType) -> Callable[[Any], Value | None]:
    """Return a function from a user's value to what Spark would pickle of it.

    The function returns None for what it does not know for certain.
    """
    tests = []
    for i, field in enumerate(schema):
        kind = _kind(field.dataType)
        assert kind is not None
        test = kind.test.format(f"v[{i}]", f"type{i}")
        tests.append(f"(v[{i}] is None or {test})" if field.nullable else f"({test})")
    kept = _tuple(schema, "kept") if _changes(schema, "kept") else "v"
    return _function(
        f"{kept} if type(v) is tuple and len(v) == {len(schema)}"
        f" and {' and '.join(tests)} else None",
        schema,
    )


def reader(schema: StructType) -> Callable[[Value], Value] | None:
    """Return the function from the pickled form to what users see; None: they are the same."""
    return _function(_tuple(schema, "shown"), schema) if _changes(schema, "shown") else None
