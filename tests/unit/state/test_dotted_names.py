"""Keys whose columns have dots in their names, as after ``groupBy(df["`a.b`"])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.spark.types import Atom, Field, Struct
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import DistinctBuilder

_INNER = Struct((Field("b", Atom("long")), Field("c.d", Atom("long"))))


class _Builder(DistinctBuilder):
    """The keys are three numbers: `n`, `n + 1`, `n + 2`."""

    key_type = Struct((Field("a.x", Atom("long")), Field("a", _INNER)))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"a.x": number, "a": {"b": number + 1, "c.d": number + 2}}


def _flat(key: dict[str, Any]) -> dict[str, Any]:
    return {"a.x": key["a.x"], "a.b": key["a"]["b"], "a.c.d": key["a"]["c.d"]}


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return _Builder(tmp_path / "query", spark_format=2).build(snapshots=())


def test_they_are_looked_up(built: CheckpointBuilder) -> None:
    shown = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    assert len(shown) == 12
    with millpond.lookup(built.root) as state:
        for key in shown:
            for given in (key, _flat(key)):
                assert [row["key"] for row in state.get(given)] == [key]
        for name in _flat(shown[0]):
            assert state.get({**_flat(shown[0]), name: 777}) == [], name
        with pytest.raises(InvalidInputError, match=r"no key column 'a\.y'"):
            state.get({**_flat(shown[0]), "a.y": 1})
    for name, value in _flat(shown[0]).items():
        found = millpond.read_state(built.root, keys={name: value}).to_pylist()
        assert [row["key"] for row in found] == [shown[0]], name


@pytest.mark.parametrize("name", ["a.x", "a.b", "a.c.d"])
def test_they_are_erased(built: CheckpointBuilder, name: str) -> None:
    gone, *others = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    millpond.erase([built.root], key={name: _flat(gone)[name]})
    left = [row["key"] for row in millpond.read_state(built.root).to_pylist()]
    assert sorted(map(str, left)) == sorted(map(str, others))
