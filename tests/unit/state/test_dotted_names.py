"""Keys whose columns have dots in their names, as after ``groupBy(df["`a.b`"])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.model.ids import StoreId
from millpond.rows.encode import encode_rows
from millpond.rows.hashing import groups_of, hash_rows
from millpond.spark.types import Atom, Field, Struct
from tests.checkpoints import CheckpointBuilder, utf
from tests.row_checkpoints import RowsBuilder

_INNER = Struct((Field("b", Atom("long")), Field("c.d", Atom("long"))))
_KEY = Struct((Field("a.x", Atom("long")), Field("a", _INNER)))
_LONG = '{"name":"%s","type":"long"}'
_INNER_TEXT = f'{{"type":"struct","fields":[{_LONG % "b"},{_LONG % "c.d"}]}}'


class _Builder(RowsBuilder):
    """Version v of partition p adds a key of three numbers: `n`, `n + 1`, `n + 2`."""

    def schema(self) -> bytes:
        key = f'{_LONG % "a.x"},{{"name":"a","type":{_INNER_TEXT}}}'
        texts = [
            f'{{"type":"struct","fields":[{fields}]}}'
            for fields in (key, '{"name":"n","type":"string"}')
        ]
        return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(text) for text in texts)

    def keys(self, version: int) -> int:
        return version

    def number(self, store: StoreId, version: int) -> int:
        mine = (n for n in range(1, 200) if self._group(n) % self.partitions == store.partition)
        return next(n for place, n in enumerate(mine, 1) if place == version)

    def _group(self, n: int) -> int:
        return int(groups_of(hash_rows(_keys(n), _KEY), self.groups.max_parallelism)[0])

    def key(self, store: StoreId, version: int) -> bytes:
        n = self.number(store, version)
        (row,) = encode_rows(_keys(n), _KEY).to_pylist()
        return self.groups.slot(self._group(n)).to_bytes(2, "big") + b"\0\0\0" + bytes(row)


def _keys(n: int) -> Any:
    return pa.array([{"a.x": n, "a": {"b": n + 1, "c.d": n + 2}}])


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
