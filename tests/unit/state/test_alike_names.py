"""Keys of which two columns have one name, as after `groupBy(a.k, b.k)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.spark.types import Atom, Field, Struct
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
