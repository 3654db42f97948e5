"""Which state travels in bulk: rows of plain types, which are the same in Python and in the JVM.

Spark sends a value through a pickle, a row of the JVM and an encoder, and back. What comes back is
known without that only for some types, and only for values of exactly the right Python type. All
else goes through Spark's own calls.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
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


_HELPERS = {"_is_text": _is_text, "_is_date": _is_date, "_is_time": _is_time}


def _test(data_type: DataType) -> str | None:
    """Return an expression over `{}` that holds for values of the type; None: it is not plain."""
    kind: type[Any] = type(data_type)
    bits = _INTEGERS.get(kind)
    if bits is not None:
        return f"type({{0}}) is int and {-(1 << bits - 1)} <= {{0}} < {1 << bits - 1}"
    if data_type == StringType():
        return "_is_text({0})"
    return {
        BooleanType: "type({0}) is bool",
        DoubleType: "type({0}) is float",
        DateType: "_is_date({0})",
        TimestampType: "_is_time({0})",
        TimestampNTZType: "_is_time({0})",
    }.get(kind)


def is_plain(schema: StructType, *, as_key: bool = False) -> bool:
    """Return whether rows of `schema` may travel in bulk.

    Args:
        as_key: whether they are keys of a map. Zero has two forms as a double, which Python
            takes for equal, and the JVM does not.
    """
    return len(schema) > 0 and all(
        _test(field.dataType) is not None
        and not (as_key and isinstance(field.dataType, DoubleType))
        for field in schema
    )


def checker(schema: StructType) -> Callable[[Any], Value | None]:
    """Return a function from a user's value to what Spark would pickle of it.

    The function returns None for what it does not know for certain. It is made as source because
    it runs for each value.
    """
    tests = []
    for i, field in enumerate(schema):
        test = _test(field.dataType)
        assert test is not None
        test = test.format(f"v[{i}]")
        tests.append(f"(v[{i}] is None or {test})" if field.nullable else f"({test})")
    source = (
        f"lambda v: v if type(v) is tuple and len(v) == {len(schema)}"
        f" and {' and '.join(tests)} else None"
    )
    check: Callable[[Any], Value | None] = eval(source, dict(_HELPERS))
    if not needs_conversion(schema):
        return check

    def converting(value: Any) -> Value | None:
        found = check(value)
        return None if found is None else schema.toInternal(found)

    return converting


def needs_conversion(schema: StructType) -> bool:
    """Return whether the pickled form differs from what users see."""
    return any(field.dataType.needConversion() for field in schema)


def reader(schema: StructType) -> Callable[[Value], Value] | None:
    """Return the function from the pickled form to what users see; None: they are the same."""
    if not needs_conversion(schema):
        return None
    return lambda value: tuple(schema.fromInternal(value))
