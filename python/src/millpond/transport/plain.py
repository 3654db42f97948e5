"""Which state travels in bulk: rows of plain types, which are the same in Python and in the JVM.

Spark sends a value through a pickle, a row of the JVM and an encoder, and back. What comes back is
known without that only for some types, and only for values of exactly the right Python type. All
else goes through Spark's own calls. Arrays, maps and structs are plain if all in them is.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    Row,
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


def _as_row(names: list[str], values: tuple[Any, ...]) -> Row:
    """Return a struct as Spark makes it."""
    row = Row(*values)
    row.__fields__ = names
    return row


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
    """A plain type that is not nested, as expressions over a value that is not null and its type.

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
    "Row": Row,
    "_is_text": _is_text,
    "_is_date": _is_date,
    "_is_time": _is_time,
    "_is_decimal": _is_decimal,
    "_as_float": _as_float,
    "_as_decimal": _as_decimal,
    "_as_row": _as_row,
}


def _is_plain(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return is_plain(data_type)
    if isinstance(data_type, ArrayType):
        return _is_plain(data_type.elementType)
    if isinstance(data_type, MapType):
        return _is_plain_key(data_type.keyType) and _is_plain(data_type.valueType)
    return type(data_type) in _KINDS


def _is_plain_key(data_type: DataType) -> bool:
    """Return whether keys are equal in Python if and only if they are equal in the JVM.

    Zero has two forms as a floating point number, which Python takes for equal. Python cannot look
    for an array, and texts with a collation have an order of their own.
    """
    if isinstance(data_type, StringType):
        return data_type == StringType()
    return type(data_type) in _KINDS and not isinstance(data_type, (DoubleType, FloatType))


def is_plain(schema: StructType, *, as_key: bool = False) -> bool:
    """Return whether rows of `schema` may travel in bulk.

    Args:
        as_key: whether they are keys of a map.
    """
    test = _is_plain_key if as_key else _is_plain
    return len(schema) > 0 and all(test(field.dataType) for field in schema)


def comes_back_as_written(data_type: DataType) -> bool:
    """Return whether users read a value as they wrote it: all do but maps, which change order."""
    if isinstance(data_type, StructType):
        return all(comes_back_as_written(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return comes_back_as_written(data_type.elementType)
    return not isinstance(data_type, MapType)


_ONE_SIZE = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
)


def is_sized(data_type: DataType) -> bool:
    """Return whether some values take more room than others. It may be any type, not only a plain
    one.
    """
    if isinstance(data_type, StructType):
        return any(is_sized(field.dataType) for field in data_type)
    return not isinstance(data_type, _ONE_SIZE)


@dataclass
class _Source:
    """Expressions over values of plain types. They are source because they run for each value.

    Each of the three methods is given the text of a value that is not null, and its type.
    """

    nulls: bool = True  # whether an array, or a map as a value, may have a null in it
    names: dict[str, Any] = field(default_factory=lambda: dict(_HELPERS))

    def name(self, of: Any) -> str:
        """Return a new name, which stands for `of`."""
        found = f"n{len(self.names)}"
        self.names[found] = of
        return found

    def function(self, body: str) -> Callable[[Any], Any]:
        """Return a function of `v`."""
        found: Callable[[Any], Any] = eval(f"lambda v: {body}", self.names)
        return found

    def test(self, v: str, of: DataType) -> str:
        """Return whether the value is known."""
        if isinstance(of, StructType):
            return f"type({v}) in (tuple, Row) and {self.test_fields(v, of)}"
        if isinstance(of, ArrayType):
            x = self.name(None)
            each = self._or_allowed_null(x, of.containsNull, self.test(x, of.elementType))
            return f"type({v}) in (list, tuple) and all([{each} for {x} in {v}])"
        if isinstance(of, MapType):
            k, x = self.name(None), self.name(None)
            value = self._or_allowed_null(x, of.valueContainsNull, self.test(x, of.valueType))
            each = f"{self.test(k, of.keyType)} and {value}"
            return f"type({v}) is dict and all([{each} for {k}, {x} in {v}.items()])"
        return self._by_kind(_KINDS[type(of)].test, v, of)

    def _or_allowed_null(self, v: str, nullable: bool, test: str) -> str:
        if nullable and self.nulls:
            return f"({v} is None or {test})"
        return f"({v} is not None and {test})"

    def test_fields(self, v: str, schema: StructType) -> str:
        """Return whether a tuple has the right number of values, and all are known."""
        tests = [f"len({v}) == {len(schema)}"]
        for i, column in enumerate(schema):
            test = self.test(f"{v}[{i}]", column.dataType)
            tests.append(f"({v}[{i}] is None or {test})" if column.nullable else f"({test})")
        return " and ".join(tests)

    def kept(self, v: str, of: DataType) -> str:
        """Return what Spark would pickle of the value; empty: the value itself.

        Arrays and maps are copied, because users may change theirs.
        """
        if isinstance(of, StructType):
            return self.fields(v, of, self.kept) or f"tuple({v})"
        return self._nested(v, of, self.kept) or self._by_kind(_KINDS[type(of)].kept, v, of)

    def shown(self, v: str, of: DataType) -> str:
        """Return what users read, from the pickled form; empty: the same."""
        if isinstance(of, StructType):
            values = self.fields(v, of, self.shown) or v
            return f"_as_row({self.name(of.names)}, {values})"
        return self._nested(v, of, self.shown) or self._by_kind(_KINDS[type(of)].shown, v, of)

    def _nested(self, v: str, of: DataType, part: Callable[[str, DataType], str]) -> str:
        if isinstance(of, ArrayType):
            x = self.name(None)
            return f"[{_or_null(x, part(x, of.elementType))} for {x} in {v}]"
        if isinstance(of, MapType):
            k, x = self.name(None), self.name(None)
            key, value = part(k, of.keyType) or k, _or_null(x, part(x, of.valueType))
            return f"{{{key}: {value} for {k}, {x} in {v}.items()}}"
        return ""

    def fields(self, v: str, schema: StructType, part: Callable[[str, DataType], str]) -> str:
        """Return a tuple with that part of each value of a tuple; empty: nothing changes."""
        parts = [part(f"{v}[{i}]", column.dataType) for i, column in enumerate(schema)]
        if not any(parts):
            return ""
        values = [_or_null(f"{v}[{i}]", changed) for i, changed in enumerate(parts)]
        return f"({', '.join(values)},)"

    def _by_kind(self, template: str, v: str, of: DataType) -> str:
        return template.format(v, self.name(of)) if template else ""


def _or_null(v: str, changed: str) -> str:
    return f"None if {v} is None else {changed}" if changed else v


def checker(schema: StructType, *, nulls: bool = True) -> Callable[[Any], Value | None]:
    """Return a function from a user's value to what Spark would pickle of it.

    The function returns None for what it does not know for certain.

    Args:
        nulls: whether a null in an array or as a value in a map is known.
    """
    source = _Source(nulls)
    kept = source.fields("v", schema, source.kept) or "v"
    test = f"type(v) is tuple and {source.test_fields('v', schema)}"
    return source.function(f"{kept} if {test} else None")


def reader(schema: StructType) -> Callable[[Value], Value] | None:
    """Return the function from the pickled form to what users see; None: they are the same."""
    source = _Source()
    changed = source.fields("v", schema, source.shown)
    return source.function(changed) if changed else None
