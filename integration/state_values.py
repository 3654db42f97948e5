"""Values for state variables of every type, by the name of their pool, and their text.

The text of a value tells its Python types too: what a user's code gets must be of the same types
on every transport.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as T


@dataclass(frozen=True)
class Pool:
    """The values of one schema. Each is a tuple, in the order of the fields."""

    schema: T.StructType
    values: tuple[tuple[Any, ...], ...]


def _struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, type_) for name, type_ in fields.items()])


_POINT = _struct(x=T.IntegerType(), y=T.StringType())
_DAY = _struct(day=T.DateType(), text=T.StringType())
_UTC = dt.timezone.utc

POOLS: Mapping[str, Pool] = {
    "long": Pool(
        _struct(v=T.LongType()), ((0,), (1,), (-1,), (2**63 - 1,), (-(2**63),), (None,), (7,))
    ),
    "text": Pool(
        _struct(s=T.StringType()),
        (("",), ("a",), ("ü€\U0001f600",), ("a\u0000b",), ("long " * 300,), (None,), ("b",)),
    ),
    "numbers": Pool(
        _struct(b=T.BooleanType(), t=T.ByteType(), h=T.ShortType(), i=T.IntegerType()),
        ((True, 1, 2, 3), (False, -128, -32768, -(2**31)), (None, None, None, None)),
    ),
    "floats": Pool(
        _struct(f=T.FloatType(), d=T.DoubleType()),
        (
            (0.0, 0.0),
            (-0.0, -0.0),
            (math.nan, math.nan),
            (math.inf, -math.inf),
            (None, 1.5),
            (1e-45, 5e-324),
            (0.1, 0.1),
        ),
    ),
    "exact": Pool(
        _struct(n=T.DecimalType(9, 2), w=T.DecimalType(38, 10)),
        (
            (Decimal("0.00"), Decimal("0E-10")),
            (Decimal("-1.25"), Decimal("1234567890123456789012345678.0123456789")),
            (None, None),
            (Decimal("1"), Decimal("2.5")),
        ),
    ),
    "bytes": Pool(
        _struct(b=T.BinaryType()),
        ((b"",), (b"\x00\xff",), (bytes(range(256)),), (None,), (bytearray(b"ab"),)),
    ),
    "times": Pool(
        _struct(d=T.DateType(), t=T.TimestampType(), n=T.TimestampNTZType()),
        (
            (
                dt.date(2024, 2, 29),
                dt.datetime(2024, 1, 1, 12, 30, 1, 5, tzinfo=_UTC),
                dt.datetime(2024, 1, 1, 12),
            ),
            (dt.date(1, 1, 1), dt.datetime(1969, 12, 31, 23, tzinfo=_UTC), dt.datetime(1900, 1, 1)),
            (None, None, None),
            (dt.date(9999, 12, 31), dt.datetime(2038, 1, 19, tzinfo=_UTC), None),
        ),
    ),
    "nested": Pool(
        _struct(
            a=T.ArrayType(T.IntegerType()),
            m=T.MapType(T.StringType(), T.LongType()),
            p=_POINT,
            ps=T.ArrayType(_POINT),
            deep=_struct(inner=_struct(tags=T.ArrayType(T.StringType()))),
        ),
        (
            ([1, None, 3], {"a": 1, "b": None}, (1, "x"), [(1, None), None], ((["t"],),)),
            ([], {}, (None, None), [], (None,)),
            (None, None, None, None, None),
            ([5], {"": 0}, Row(x=2, y="ü"), [Row(x=9, y="z")], ((None,),)),
        ),
    ),
    "whole": Pool(
        _struct(
            rows=T.ArrayType(_DAY),
            grid=T.ArrayType(T.ArrayType(T.DecimalType(9, 2))),
            days=T.MapType(T.StringType(), _DAY),
            by_text=T.MapType(T.StringType(), T.ArrayType(T.LongType())),
            one=_struct(day=_DAY, bits=T.MapType(T.StringType(), T.BooleanType())),
        ),
        (
            (
                [(dt.date(2024, 2, 29), "a"), Row(day=None, text="ü€\U0001f600")],
                [[Decimal("1"), Decimal("-2.50")], []],
                {f"{i}": (dt.date(2024, 1, i + 1), None) for i in range(20)},
                {f"key {i}": [i, -i] for i in range(40)},
                Row(day=(dt.date(2024, 1, 1), None), bits={"x" * i: i % 2 == 0 for i in range(9)}),
            ),
            ([], [[]], {}, {"": []}, (None, {})),
            (None, None, None, None, None),
            ([(None, None)], None, {"": (None, None)}, {"b": [], "a": []}, None),
        ),
    ),
    "nulls": Pool(
        _struct(
            a=T.ArrayType(T.IntegerType()),
            ps=T.ArrayType(_DAY),
            f=T.ArrayType(T.FloatType()),
            grid=T.ArrayType(T.ArrayType(T.StringType())),
            m=T.MapType(T.StringType(), T.LongType()),
            by=T.MapType(T.StringType(), T.ArrayType(T.DateType())),
        ),
        (
            (
                [1, None, 3],
                [(None, "a"), None],
                [None, 0.1],
                [None, [None, "x"]],
                {"a": 1, "b": None},
                {"a": [None, dt.date(2024, 1, 1)], "b": None},
            ),
            ([None], [None], [None], [[None], None], {"": None}, {"": None}),
            ([], [], [], [], {f"{i}": None for i in range(9)}, {}),
        ),
    ),
    "unsure": Pool(
        _struct(a=T.ArrayType(_DAY), m=T.MapType(T.StringType(), T.ArrayType(T.LongType()))),
        (
            ([None], {"a": None}),
            ([{"text": "a"}], {"a": [1, None]}),
            ([[None, "a"]], {"a": (1, 2)}),
        ),
    ),
    "collated": Pool(
        _struct(s=T.StringType("UTF8_LCASE"), a=T.ArrayType(T.StringType("UTF8_LCASE"))),
        (("A", ["b", "B"]), ("a", []), (None, None), ("ü", ["Ü"])),
    ),
    "nested_whole": Pool(
        _struct(a=T.ArrayType(T.IntegerType()), m=T.MapType(T.StringType(), T.LongType())),
        (([1, 3], {"a": 1, "b": 2}), ([], {}), (None, None)),
    ),
    "number": Pool(_struct(n=T.LongType()), tuple((i,) for i in range(20_000))),
    "pair": Pool(
        _struct(x=T.LongType(), y=T.StringType()),
        ((1, "a"), (1, None), (None, "a"), (None, None), (-5, ""), (2, "ü")),
    ),
    "deep_key": Pool(
        _struct(p=_POINT, a=T.ArrayType(T.IntegerType())),
        (((1, "a"), [1, 2]), ((None, None), []), (None, None), ((1, "a"), [2, 1])),
    ),
    "deep_floats": Pool(
        _struct(p=_struct(x=T.FloatType()), a=T.ArrayType(T.DoubleType())),
        (
            ((0.0,), [0.0]),
            ((-0.0,), [-0.0]),
            ((math.nan,), [math.nan]),
            ((None,), [None, -0.0]),
            (None, None),
        ),
    ),
}


def shown(value: Any) -> str:
    """Return a text that differs if a value or a type in it differs."""
    if isinstance(value, Row):
        names = getattr(value, "__fields__", None)
        inner = ", ".join(map(shown, value))
        return f"Row[{','.join(names) if names else '-'}]({inner})"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        pairs = ", ".join(f"{shown(k)}: {shown(v)}" for k, v in value.items())
        return f"{type(value).__name__}({pairs})"
    if isinstance(value, bytes | bytearray):
        return f"{type(value).__name__}({value.hex()})"
    return f"{type(value).__name__} {value!r}" if value is not None else "None"
