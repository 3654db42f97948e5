"""Keys of which two columns have one name, as after `groupBy(a.k, b.k)`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.rows.arrow_types import struct_type
from millpond.spark.types import Atom, Field, Struct
from millpond.state.tables import Filter
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import DistinctBuilder

_INNER = Struct((Field("x", Atom("long")), Field("x", Atom("long"))))


class _Builder(DistinctBuilder):
    """The keys are four numbers: `n`, `-n`, `n + 1`, `n + 2`."""

    key_type = Struct((Field("k", Atom("long")), Field("k", Atom("long")), Field("s", _INNER)))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": number, "k_2": -number, "s": {"x": number + 1, "x_2": number + 2}}


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return _Builder(tmp_path / "query", spark_format=2).build()


def test_each_column_counts(built: CheckpointBuilder) -> None:
    shown = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    assert len(shown) == 12
    with millpond.lookup(built.root) as state:
        for key in shown:
            assert [row["key"] for row in state.get(key)] == [key]
        n = shown[0]["k"]
        flat = {"k": n, "k_2": -n, "s.x": n + 1, "s.x_2": n + 2}
        assert [row["key"] for row in state.get(flat)] == [shown[0]]
        for name in flat:
            assert state.get({**flat, name: 777}) == [], name


def test_a_column_that_is_given_twice(built: CheckpointBuilder) -> None:
    """The last value would count, in silence."""
    n = millpond.read_state(built.root).to_pylist()[0]["key"]["k"]
    key: dict[str, Any] = {"k": n, "k_2": -n, "s": {"x": n + 1, "x_2": n + 2}, "s.x": 7}
    with millpond.lookup(built.root) as state:
        for refused in (
            partial(state.get, key),
            partial(millpond.read_state, built.root, keys=key),
            partial(millpond.erase, [built.root], key=key, dry_run=True),
        ):
            with pytest.raises(InvalidInputError, match=r"column 's\.x' twice"):
                refused()


def test_a_column_of_a_join_that_is_given_by_both_names() -> None:
    stored = Struct((Field("field0", Atom("long")), Field("field1", Atom("long"))))
    shown = {"field0": "id"}
    keys = pa.array([{"field0": 1, "field1": 2}, {"field0": 1, "field1": 3}], struct_type(stored))
    for name in ("id", "field0"):
        chosen = Filter({name: 1, "field1": 3}, stored, shown)
        assert chosen.mask(keys).to_pylist() == [False, True]
    with pytest.raises(InvalidInputError, match="column 'field0' twice"):
        Filter({"id": 1, "field0": 2}, stored, shown)


def test_a_column_that_is_left_out(built: CheckpointBuilder) -> None:
    with millpond.lookup(built.root) as state, pytest.raises(InvalidInputError) as caught:
        state.get({"k": 1, "s": {"x": 2, "x_2": 3}})
    told = f"{caught.value.message} {caught.value.hint}"
    assert "k long, k_2 long" in told and "--key k_2=1" in told and "--key s.x_2=1" in told


def test_the_list(built: CheckpointBuilder) -> None:
    (family,) = millpond.state.list(built.root).families
    assert list(family.key) == ["k", "k_2", "s"]


def test_erase_by_the_second_column(tmp_path: Path) -> None:
    built = _Builder(tmp_path / "query").build(snapshots=())
    keys = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    gone = keys[0]
    report = millpond.erase([built.root], key={"k_2": gone["k_2"]})
    assert report.places[0].rows == 1
    left = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    assert left == keys[1:]
