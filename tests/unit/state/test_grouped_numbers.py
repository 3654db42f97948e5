"""Spark groups by one zero and one NaN. There are two zeros, and many NaNs: on x86 what 0.0 / 0.0
is has a sign.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.spark.types import Array, Atom, Field, Struct
from millpond.state.tables import Filter, equals
from tests.refusals import refused
from tests.row_checkpoints import DistinctBuilder, RowsBuilder

_OTHER_NAN = struct.unpack("<d", bytes.fromhex("000000000000f8ff"))[0]


class _Doubles(DistinctBuilder):
    """NaN and zero are keys, whatever partitions their hashes choose."""

    key_type = Struct((Field("k", Atom("double")),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": math.nan if number < 2 else max(0.0, number - 3.0)}


class _Floats(_Doubles):
    key_type = Struct((Field("k", Atom("float")),))


@pytest.fixture(params=[_Doubles, _Floats])
def built(request: pytest.FixtureRequest, tmp_path: Path) -> DistinctBuilder:
    builder: DistinctBuilder = request.param(tmp_path / "query").build(snapshots=())
    return builder


def test_a_look_up_finds_what_spark_grouped(built: DistinctBuilder) -> None:
    rows = millpond.read_state(built.root).to_pylist()
    (nan,) = [row for row in rows if math.isnan(row["key"]["k"])]
    (zero,) = [row for row in rows if row["key"]["k"] == 0]
    with millpond.lookup(built.root) as state:
        for given in (math.nan, _OTHER_NAN, "NaN"):
            (found,) = state.get({"k": given})
            assert found["value"] == nan["value"]
        for given in (0.0, -0.0, "-0"):
            assert state.get({"k": given}) == [zero]
        (other,) = [row for row in rows if row["key"]["k"] > 0][:1]
        assert state.get({"k": other["key"]["k"]}) == [other]


def test_so_does_a_table_of_keys(built: DistinctBuilder) -> None:
    kind = built.key_type.fields[0].type
    number = pa.float32() if kind == Atom("float") else pa.float64()
    numbers = [_OTHER_NAN, math.nan, -0.0, 0.0, None, 1.5]
    keys = pa.StructArray.from_arrays([pa.array(numbers, number)], names=["k"])
    for given, places in (
        ([math.nan], [0, 1]),
        ([_OTHER_NAN], [0, 1]),
        ([-0.0], [2, 3]),
        ([0.0, None], [2, 3, 4]),
    ):
        mask = Filter(pa.table({"k": pa.array(given, number)}), built.key_type).mask(keys)
        assert [n for n, found in enumerate(mask.to_pylist()) if found] == places


def _bits(table: Any) -> set[bytes]:
    return {struct.pack("<d", row["key"]["k"]) for row in table.to_pylist()}


@pytest.mark.parametrize("by", ["table", "function"])
def test_an_edit_writes_keys_as_spark_looks_for_them(
    built: DistinctBuilder, tmp_path: Path, by: str
) -> None:
    savepoint.create(built.root, tmp_path / "saved")
    table = pa.table(
        {
            "key": pa.array([{"k": number} for number in (-0.0, _OTHER_NAN, -1.5)]),
            "value": pa.array([{"n": text} for text in ("zero", "nan", "negative")]),
        }
    )
    given: dict[str, Any] = {"table": table}
    if by == "function":
        calls: list[Callable[[], Any]] = [lambda: table]
        given = {"function": lambda _: calls.pop()() if calls else None}
    report = savepoint.edit(tmp_path / "saved", tmp_path / "edited", **given)
    assert report.rows_after == 3
    expected = {struct.pack("<d", number) for number in (0.0, math.nan, -1.5)}
    assert _bits(millpond.read_state(tmp_path / "edited")) == expected
    savepoint.restore(tmp_path / "edited", tmp_path / "new")
    with millpond.lookup(tmp_path / "new") as state:
        for number, text in ((0.0, "zero"), (math.nan, "nan"), (-1.5, "negative")):
            assert [row["value"]["n"] for row in state.get({"k": number})] == [text]


def test_two_zeros_are_one_key(built: DistinctBuilder, tmp_path: Path) -> None:
    savepoint.create(built.root, tmp_path / "saved")
    table = pa.table({"key": [{"k": 0.0}, {"k": -0.0}], "value": [{"n": "a"}, {"n": "b"}]})
    error = refused(
        ErrorKind.INVALID_ARGUMENT,
        lambda: savepoint.edit(tmp_path / "saved", tmp_path / "edited", table=table),
    )
    assert "two rows have the same key" in str(error)


@pytest.mark.parametrize("number", [pa.float32(), pa.float64()])
def test_numbers_inside_of_a_value_are_found_as_well(number: pa.DataType) -> None:
    """NaN was found by itself alone."""
    lists = [[1.0, math.nan], [1.0, _OTHER_NAN], [0.0], [-0.0], [None], [], None, [1.0]]
    flat = pa.array(lists, pa.list_(number))
    structs = pa.array(
        [None if one is None else [{"s": "x", "n": n} for n in one] for one in lists],
        pa.list_(pa.struct([("s", pa.string()), ("n", number)])),
    )
    for column in (flat, structs):
        for wanted, places in ((0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [2, 3]), (6, [6])):
            found = equals(column, column[wanted]).to_pylist()
            assert [n for n, one in enumerate(found) if one] == places
        assert equals(column[2:], column[4]).to_pylist() == [False, False, True] + [False] * 3
        assert equals(column[:0], column[0]).to_pylist() == []
    pair = pa.StructArray.from_arrays([flat, pa.array(range(8))], names=["l", "n"])
    assert equals(pair, pair[0]).to_pylist() == [True] + [False] * 7
    nan = pa.scalar([1.0, math.nan])
    assert equals(pa.array([[1.0, math.nan]]), nan).to_pylist() == [True]


class _Lists(RowsBuilder):
    key_type = Struct((Field("k", Array(Atom("double"))),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": [1.0, math.nan if number == 1 else number]}


@pytest.mark.parametrize("given", ["[1, NaN]", [1.0, math.nan], [1.0, _OTHER_NAN]])
def test_a_list_with_nan_is_read_and_erased(tmp_path: Path, given: object) -> None:
    """It was not found, so it stayed, and the proof said that none was there."""
    built = _Lists(tmp_path / "query").build(snapshots=())
    keys = millpond.read_state(built.root).num_rows
    for wanted in ({"k": given}, pa.table({"k": pa.array([[1.0, math.nan]])})):
        (row,) = millpond.read_state(built.root, keys=wanted).to_pylist()
        assert math.isnan(row["key"]["k"][1])
    (done,) = millpond.erase([built.root], key={"k": given}).places
    assert done.rows == 1
    rows = millpond.read_state(built.root).to_pylist()
    assert len(rows) == keys - 1 and not any(math.isnan(row["key"]["k"][1]) for row in rows)
