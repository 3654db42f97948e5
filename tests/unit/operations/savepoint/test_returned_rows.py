"""The rows that a function of the user's gives back: NaN and null stay two things."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind, InvalidInputError
from millpond.model.ids import StoreId
from millpond.operations.savepoint.returned_rows import record_batches
from millpond.rows.encode import encode_rows
from millpond.spark.types import Atom, Field, Struct
from tests.checkpoints import utf
from tests.row_checkpoints import RowsBuilder

NAN = math.nan
KINDS = {
    "key": pa.struct([("k", pa.int64())]),
    "value": pa.struct(
        [
            ("n", pa.int64()),
            ("d", pa.float64()),
            ("l", pa.list_(pa.struct([("f", pa.float32())]))),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    ),
}
_SUM = Struct((Field("sum", Atom("double")),))


class _Builder(RowsBuilder):
    """The sums of a partition are NaN, those of the other one null."""

    def schema(self) -> bytes:
        columns = [("k", "long")], [("sum", "double")]
        texts = [
            json.dumps({"type": "struct", "fields": [{"name": n, "type": t} for n, t in some]})
            for some in columns
        ]
        return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(text) for text in texts)

    def value(self, store: StoreId, version: int) -> bytes:
        column = pa.array([NAN if store.partition else None], pa.float64())
        rows = pa.StructArray.from_arrays([column], names=["sum"])
        (row,) = encode_rows(rows, _SUM).to_pylist()
        return b"\0" + bytes(row)


def _sums(place: str | Path) -> list[str]:
    return sorted(str(row["value"]["sum"]) for row in millpond.read_state(place).to_pylist())


def test_a_frame_makes_no_nulls_of_nans(tmp_path: Path) -> None:
    built = _Builder(tmp_path / "query").build()
    before = _sums(built.root)
    assert {*before} == {"nan", "None"}
    savepoint.create(built.root, tmp_path / "saved")

    def edited(name: str, function: Any) -> list[str]:
        savepoint.edit(tmp_path / "saved", tmp_path / name, function=function)
        return _sums(tmp_path / name)

    with pytest.raises(InvalidInputError) as refused:
        edited("frame", lambda rows: rows.to_pandas())
    assert refused.value.kind is ErrorKind.INVALID_ARGUMENT
    assert "column 'value.sum'" in refused.value.message
    assert not (tmp_path / "frame").exists()

    def as_the_hint_says(rows: Any) -> Any:
        frame = rows.to_pandas()
        return pa.RecordBatch.from_pylist(frame.to_dict("records"), schema=rows.schema)

    assert edited("records", as_the_hint_says) == before

    def without_nans(rows: Any) -> Any:
        frame = rows.to_pandas()
        return frame[[value["sum"] is None for value in frame["value"]]]

    assert {*edited("nulls", without_nans)} == {"None"}


def _value(**changed: Any) -> dict[str, Any]:
    return {"n": 1, "d": 1.0, "l": [{"f": 1.0}], "m": [("a", 1.0)]} | changed


def _returned(*values: dict[str, Any]) -> Any:
    keys = [{"k": number} for number in range(len(values))]
    (batch,) = record_batches(pandas.DataFrame({"key": keys, "value": values}), KINDS)
    return batch


@pytest.mark.parametrize(
    "value",
    [_value(d=NAN), _value(l=[{"f": 1.0}, {"f": NAN}]), _value(m=[("a", 1.0), ("b", NAN)])],
)
def test_a_nan_at_any_depth(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="has NaN in column 'value"):
        _returned(_value(), value)


def test_what_is_clear_is_taken() -> None:
    """pandas makes doubles of whole numbers, and NaN of their nulls."""
    found = _returned({"n": 1.0, "d": 1.0, "l": []}, {"n": NAN, "d": None, "l": None})
    assert found.column("value").to_pylist() == [
        {"n": 1.0, "d": 1.0, "l": []},
        {"n": None, "d": None, "l": None},
    ]
