"""An example of a key is one that a look-up takes, and a wrong key is told it."""

from __future__ import annotations

import json
import shlex
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.spark.types import Array, Atom, Decimal, Field, SparkType, Struct
from millpond.state.key_examples import key_hint
from millpond.state.tables import Filter, key_value
from tests.row_checkpoints import HashedBuilder

_KINDS: list[SparkType] = [
    Decimal(10, 2),
    Array(Atom("long")),
    *(
        Atom(name)
        for name in (
            "boolean",
            "byte",
            "short",
            "integer",
            "long",
            "float",
            "double",
            "string",
            "binary",
            "date",
            "timestamp",
            "timestamp_ntz",
        )
    ),
]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_an_example_is_taken(kind: SparkType) -> None:
    inner = Struct((Field("a b", kind),))
    key = Struct((Field("outer", inner), Field("plain", kind)))
    given = shlex.split(key_hint(key, {}).partition("For example ")[2])
    values = dict(text.split("=", 1) for text in given if text != "--key")
    assert list(values) == ["outer.a b", "plain"]
    for name, text in values.items():
        taken = key_value(key, name, text, {})
        assert taken.is_valid
        assert taken.as_py() == b"a" or kind != Atom("binary")


def test_an_example_of_a_column_that_begins_with_a_dash_is_taken() -> None:
    given = key_hint(Struct((Field("-k", Atom("long")),)), {}).partition("For example ")[2]
    assert given == "--key=-k=1"


@pytest.mark.parametrize("text", ["YQ", "a", "Y Q=", "é"])
def test_bytes_are_given_in_base64(text: str) -> None:
    key = Struct((Field("b", Atom("binary")),))
    with pytest.raises(InvalidInputError, match="key column 'b' is binary"):
        key_value(key, "b", text, {})
    assert key_value(key, "b", text.encode(), {}).as_py() == text.encode()


@pytest.mark.parametrize("name", ["float", "double"])
def test_each_number_is_found_as_spark_groups_it(name: str) -> None:
    key = Struct((Field("f", Atom(name)),))
    numbers = [float("nan"), -0.0, 0.0, None, 1.5]
    column = pa.array([{"f": number} for number in numbers], struct_type(key))
    for wanted, places in ((numbers[0], [0]), ("NaN", [0]), (0.0, [1, 2]), (-0.0, [1, 2])):
        mask = Filter({"f": wanted}, key).mask(column).to_pylist()
        assert [n for n, found in enumerate(mask) if found] == places
    assert Filter({"f": None}, key).mask(column).to_pylist() == [n is None for n in numbers]


def test_a_list_is_found_and_given_as_json() -> None:
    days = [[date(2026, 1, 31), None], [date(2026, 1, 31)], [], None, [None]]
    key = Struct((Field("k", Array(Atom("date"))),))
    column = pa.array([{"k": one} for one in days], struct_type(key))
    for number, wanted in enumerate(days):
        for given in (wanted, json.dumps(wanted, default=str)):
            mask = Filter({"k": given}, key).mask(column).to_pylist()
            assert [n for n, found in enumerate(mask) if found] == [number]
    nested = Struct((Field("k", Array(Array(Atom("long")))),))
    assert key_value(nested, "k", "[[1, null], null, []]", {}).as_py() == [[1, None], None, []]


@pytest.mark.parametrize("text", ["", "1", "[1", '["x"]', '{"a": 1}', "[1.5]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="key column 'k' is list"):
        key_value(Struct((Field("k", Array(Atom("long"))),)), "k", text, {})
    with pytest.raises(InvalidInputError, match="key column 'k' is list"):
        key_value(Struct((Field("k", Array(Atom("binary"))),)), "k", '["YQ=="]', {})


def test_a_wrong_key_is_told_what_a_key_is(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=2, snapshots=())
    with millpond.lookup(built.root) as reader:
        for wrong in ({"k": "three"}, {"nothing": 3}, {}):
            with pytest.raises(InvalidInputError) as refused:
                reader.get(wrong)
            assert "A key here is: k " in refused.value.hint and "--key k=1" in refused.value.hint
