"""Keys of which two columns have one name, as after `groupBy(a.k, b.k)`."""

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

_INNER = Struct((Field("x", Atom("long")), Field("x", Atom("long"))))
_KEY = Struct((Field("k", Atom("long")), Field("k", Atom("long")), Field("s", _INNER)))
_LONG = '{"name":"%s","type":"long"}'
_INNER_TEXT = f'{{"type":"struct","fields":[{_LONG % "x"},{_LONG % "x"}]}}'


class _Builder(RowsBuilder):
    """Version v of partition p adds a key of four numbers: `n`, `-n`, `n + 1`, `n + 2`."""

    def schema(self) -> bytes:
        key = f'{_LONG % "k"},{_LONG % "k"},{{"name":"s","type":{_INNER_TEXT}}}'
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
        hashes = hash_rows(_keys(n), _KEY)
        return int(groups_of(hashes, self.groups.max_parallelism)[0])

    def key(self, store: StoreId, version: int) -> bytes:
        n = self.number(store, version)
        (row,) = encode_rows(_keys(n), _KEY).to_pylist()
        return self.groups.slot(self._group(n)).to_bytes(2, "big") + b"\0\0\0" + bytes(row)


def _keys(n: int) -> Any:
    return pa.array([{"k": n, "k_2": -n, "s": {"x": n + 1, "x_2": n + 2}}])


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
