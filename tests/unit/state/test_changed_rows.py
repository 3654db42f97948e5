"""Rows of values with other columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.spark.column_changes import ColumnChanges, changed_columns
from millpond.spark.type_texts import type_json
from millpond.spark.types import parse_schema
from millpond.state.changed_rows import check_values, with_columns


def _rows(values: Any, columns: dict[str, str], **changes: Any) -> Any:
    fields = [
        {"name": n, "type": type_json(t), "nullable": True, "metadata": {}}
        for n, t in columns.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    changed = changed_columns(schema, ColumnChanges(**changes), key=[])
    target = struct_type(parse_schema(changed.schema, name="it"))
    old = struct_type(parse_schema(schema, name="it"))
    check_values(changed.columns, target)
    lists = bool(values) and isinstance(values[0], list)
    array = pa.array(values, pa.list_(old) if lists else old)
    result = with_columns(array, changed.columns, target)
    result.validate(full=True)
    assert result.type == (pa.list_(target) if lists else target)
    return result.to_pylist()


def test_rows() -> None:
    assert _rows(
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}],
        {"a": "int", "b": "string"},
        add={"c": ("long", "7")},
        rename={"b": "text"},
        change_type={"a": "double"},
        order=["c", "a", "text"],
    ) == [{"c": 7, "a": 1.0, "text": "x"}, {"c": 7, "a": None, "text": "y"}]


def test_no_rows() -> None:
    assert _rows([], {"a": "int"}, add={"c": ("long", 0)}) == []


def test_lists_of_rows() -> None:
    assert _rows(
        [[{"a": 1}, {"a": 2}], [{"a": 3}]], {"a": "int"}, add={"b": ("boolean", "true")}
    ) == [[{"a": 1, "b": True}, {"a": 2, "b": True}], [{"a": 3, "b": True}]]


def test_a_struct_that_is_null_stays_null() -> None:
    assert _rows(
        [{"s": {"a": 1}}, {"s": None}],
        {"s": "struct<a:int>"},
        add={"s.b": ("string", "new")},
        change_type={"s.a": "long"},
    ) == [{"s": {"a": 1, "b": "new"}}, {"s": None}]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("long", "-3", -3),
        ("double", "1.5", 1.5),
        ("decimal(10,2)", "1.50", Decimal("1.50")),
        ("string", "null", "null"),
        ("binary", "00ff", b"\x00\xff"),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("timestamp", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("timestamp", datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("timestamp", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("timestamp_ntz", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        ("array<long>", None, None),
        ("timestamp_ntz", np.datetime64("2026-01-31T12:00:00", "us"), datetime(2026, 1, 31, 12)),
        ("array<long>", [1], [1]),
        (
            "map<string,timestamp>",
            [("a", datetime(2026, 1, 31, 12, tzinfo=UTC))],
            [("a", datetime(2026, 1, 31, 12, tzinfo=UTC))],
        ),
        ("struct<a:int>", None, None),
    ],
)
def test_values_of_new_columns(kind: str, text: object, expected: object) -> None:
    assert _rows([{"a": 1}], {"a": "int"}, add={"n": (kind, text)}) == [{"a": 1, "n": expected}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "1.5"),
        ("boolean", "maybe"),
        ("binary", "xyz"),
        ("date", "tomorrow"),
        ("timestamp", "noon"),
        ("timestamp", "2026-01-31T12:00:00"),
        ("timestamp", "2026-01-31"),
        ("timestamp", datetime(2026, 1, 31, 12)),
        ("timestamp", np.datetime64("2026-01-31T12:00:00", "us")),
        ("array<timestamp>", [datetime(2026, 1, 31, 12)]),
        ("map<string,timestamp>", [("a", datetime(2026, 1, 31, 12))]),
        ("map<string,timestamp>", {"a": datetime(2026, 1, 31, 12)}),
        ("map<timestamp_ntz,int>", [(datetime(2026, 1, 31, 12, tzinfo=UTC), 1)]),
        ("map<string,timestamp>", [("a",)]),
        ("map<string,int>", {"a": 1.5}),
        ("struct<t:timestamp_ntz>", {"t": datetime(2026, 1, 31, 12, tzinfo=UTC)}),
        ("timestamp_ntz", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("date", datetime(2026, 1, 31, 23, tzinfo=UTC)),
        ("timestamp_ntz", "2026-01-31T12:00:00+01:00"),
        ("decimal(4,2)", "123.45"),
        ("array<long>", "[1]"),
    ],
)
def test_values_that_do_not_fit(kind: str, text: object) -> None:
    with pytest.raises(InvalidInputError, match="column 'n': the value is no"):
        _rows([{"a": 1}], {"a": "int"}, add={"n": (kind, text)})


def test_a_number_too_large_for_its_new_type() -> None:
    with pytest.raises(InvalidInputError, match="column 'a' is int64, which is no int32"):
        _rows([{"a": 1 << 40}], {"a": "long"}, change_type={"a": "int"})
