"""Which columns values get, and where each comes from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.errors import InvalidInputError
from millpond.spark.column_changes import ColumnChanges, changed_columns
from millpond.spark.type_texts import type_json


def _schema(**columns: str) -> str:
    fields = [
        {"name": n.rstrip("_"), "type": type_json(t), "nullable": False, "metadata": {"m": 1}}
        for n, t in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _changed(schema: str, last: str = "", **changes: Any) -> list[tuple[str, object, int | None]]:
    """Return name, type and source of each new column."""
    changed = changed_columns(schema, ColumnChanges(**changes), key=["k"], last=last)
    fields = json.loads(changed.schema)["fields"]
    return [(f["name"], f["type"], c.source) for f, c in zip(fields, changed.columns, strict=True)]


_TWO = _schema(a="int", b="string")


def test_added_columns_come_last() -> None:
    assert _changed(_TWO, add={"c": ("long", 0)}) == [
        ("a", "integer", 0),
        ("b", "string", 1),
        ("c", "long", None),
    ]


def test_a_column_of_sparks_stays_last() -> None:
    schema = _schema(a="int", matched="boolean")
    found = _changed(schema, "matched", add={"c": ("long", 0)})
    assert [name for name, _, _ in found] == ["a", "c", "matched"]


def test_all_changes_at_once() -> None:
    found = _changed(
        _TWO,
        add={"c": ("decimal(10,2)", None)},
        drop=["b"],
        rename={"a": "z"},
        change_type={"a": "bigint"},
        order=["c", "z"],
    )
    assert found == [("c", "decimal(10,2)", None), ("z", "long", 0)]


def test_a_name_that_spark_uses_twice() -> None:
    """The second is called sum_2, as when it is read. Its name in the file stays."""
    found = _changed(
        _schema(sum="long", sum_="long"), drop=["sum"], change_type={"sum_2": "double"}
    )
    assert found == [("sum", "double", 1)]


def test_fields_of_structs() -> None:
    changed = changed_columns(
        _schema(s="struct<a:int,t:struct<b:int>>", c="int"),
        ColumnChanges(
            add={"s.t.x": ("string", "new")}, drop=["s.a"], change_type={"s.t.b": "double"}
        ),
        key=[],
    )
    (s, c) = changed.columns
    assert (s.source, c.source, c.inner) == (0, 1, None)
    assert s.inner is not None and s.inner[0].inner is not None
    b, x = s.inner[0].inner
    assert (b.source, x.source, x.value) == (0, None, "new")
    kind = json.loads(changed.schema)["fields"][0]["type"]
    inner = kind["fields"][0]["type"]["fields"]
    assert [(f["name"], f["type"]) for f in inner] == [("b", "double"), ("x", "string")]


@pytest.mark.parametrize(
    "changes",
    [
        {"add": {"s.x": ("long", 0)}},
        {"rename": {"s.a": "b"}},
        {"change_type": {"s.a": "long"}},
        {"order": ["s.a"]},
    ],
)
def test_a_dropped_struct_has_no_fields_to_change(changes: dict[str, Any]) -> None:
    schema = _schema(s="struct<a:int>", c="int")
    with pytest.raises(InvalidInputError, match="'s' is to be dropped, and to be changed"):
        _changed(schema, drop=["s"], **changes)
    again = _changed(schema, drop=["s"], add={"s": ("long", 0)})
    assert again == [("c", "integer", 1), ("s", "long", None)]


def test_what_spark_said_of_a_column_stays() -> None:
    """Nullability and metadata of old columns are kept; new columns may be null."""
    changed = changed_columns(_TWO, ColumnChanges(add={"c": ("int", 0)}), key=[])
    a, _, c = json.loads(changed.schema)["fields"]
    assert (a["nullable"], a["metadata"]) == (False, {"m": 1})
    assert (c["nullable"], c["metadata"]) == (True, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": ["k"]}, "part of the key"),
        ({"rename": {"x": "y"}}, "no column 'x'"),
        ({"add": {"a": ("int", 0)}}, "two columns would be called 'a'"),
        ({"rename": {"a": "b"}}, "two columns would be called 'b'"),
        ({"drop": ["a", "b"]}, "no column would be left"),
        ({"change_type": {"b": "int"}}, "cannot become integer"),
        ({"change_type": {"a": "array<int>"}}, "cannot become"),
        ({"order": ["b"]}, "the columns are a, b"),
        ({"add": {"c": ("decimal(40,2)", 0)}}, "no type of a column"),
        ({"drop": ["a"], "rename": {"a": "c"}}, "'a' is to be dropped, and to be changed"),
        ({"drop": ["a"], "change_type": {"a": "long"}}, "'a' is to be dropped, and"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as e:
        _changed(_TWO, **changes)
    assert e.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", "long"),
        ("decimal(5)", "decimal(5,0)"),
        (" decimal ( 38 , 18 ) ", "decimal(38,18)"),
        ("array<string>", {"type": "array", "elementType": "string", "containsNull": True}),
        (
            "map<string,array<int>>",
            {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "array", "elementType": "integer", "containsNull": True},
                "valueContainsNull": True,
            },
        ),
        (
            "struct<`a b`:int>",
            {
                "type": "struct",
                "fields": [{"name": "a b", "type": "integer", "nullable": True, "metadata": {}}],
            },
        ),
    ],
)
def test_texts_of_types(text: str, expected: object) -> None:
    assert type_json(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "number",
        "long long",
        "decimal",
        "decimal(0)",
        "decimal(5,6)",
        "array<int",
        "struct<>",
        "map<int>",
        "int;",
        "struct<a int>",
    ],
)
def test_texts_that_are_no_types(text: str) -> None:
    with pytest.raises(InvalidInputError, match="no type of a column"):
        type_json(text)
