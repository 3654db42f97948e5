"""State whose keys only Spark can hash: what writes rows into other key groups refuses it at once,
in a dry run too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, UnsupportedError
from millpond.model.ids import StoreId
from millpond.model.key_groups import KeyGroups
from millpond.spark.types import Array, Atom, Field, Struct
from tests.checkpoints import CheckpointBuilder, tree
from tests.row_checkpoints import RowsBuilder


class _Builder(RowsBuilder):
    key_type = Struct((Field("k", Array(Atom("long"))),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": [number]}


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return _Builder(tmp_path / "query", spark_format=2).build(snapshots=())


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_refusal(built: CheckpointBuilder, tmp_path: Path, dry_run: bool) -> None:
    savepoint.create(built.root, tmp_path / "saved")
    before = tree(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: millpond.rescale(built.root, 3, dry_run=dry_run, file_sink="none"),
        lambda: savepoint.fork(built.root, tmp_path / "new", partitions=3, dry_run=dry_run),
        lambda: savepoint.restore(
            tmp_path / "saved", tmp_path / "new", partitions=3, dry_run=dry_run
        ),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError, match="does not know their hash") as refused:
            call()
        assert refused.value.kind is ErrorKind.UNSUPPORTED
    assert tree(tmp_path) == before


def test_what_moves_no_row_is_none_of_it(built: CheckpointBuilder, tmp_path: Path) -> None:
    rows = millpond.read_state(built.root).num_rows
    savepoint.fork(built.root, tmp_path / "new", partitions=4)
    assert millpond.read_state(tmp_path / "new").num_rows == rows
    assert millpond.rescale(built.root, 4, file_sink="none").way == "composed"


def test_a_search_finds_them(built: CheckpointBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([102], "[102]"):
        (row,) = millpond.read_state(built.root, keys={"k": given}).to_pylist()
        assert row["key"] == {"k": [102]}
    assert main(["state", "read", str(built.root), "--key", "k=[102]", "--format", "json"]) == 0
    assert '"key":{"k":[102]}' in capsys.readouterr().out
    assert millpond.erase([built.root], key={"k": [102]}).places[0].rows == 1
    assert not millpond.read_state(built.root, keys={"k": [102]}).num_rows


def test_an_operator_that_is_left_out_is_none_of_it(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """A fork that dropped the operator was refused because of its keys."""
    with pytest.raises(UnsupportedError, match="does not know their hash"):
        savepoint.fork(built.root, tmp_path / "fork", partitions=3)
    report = savepoint.fork(built.root, tmp_path / "fork", partitions=3, drop_operators=[0])
    assert (report.partitions, report.dropped) == (3, (0,))


class _LastSlots(_Builder):
    def key(self, store: StoreId, version: int) -> bytes:
        slot = self.groups.slot_ranges(store.partition, self.partitions)[0][1] - 1
        return slot.to_bytes(2, "big") + super().key(store, version)[2:]


def test_the_last_of_all_slots_is_that_of_a_key_group(tmp_path: Path) -> None:
    """It has the number of the reserved slot. So its rows had no key group."""
    built = _LastSlots(
        tmp_path / "query", partitions=4, groups=KeyGroups(65_536, 4), spark_format=2
    ).build(snapshots=())

    def keys(place: Path) -> list[list[int]]:
        return sorted(row["key"]["k"] for row in millpond.read_state(place).to_pylist())

    savepoint.create(built.root, tmp_path / "saved", format="canonical")
    savepoint.restore(tmp_path / "saved", tmp_path / "restored")
    savepoint.fork(built.root, tmp_path / "forked", partitions=8)
    assert keys(tmp_path / "restored") == keys(tmp_path / "forked") == keys(built.root)
