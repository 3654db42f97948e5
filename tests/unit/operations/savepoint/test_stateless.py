"""Queries that keep no state: a filter, or one whose only operator was dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond import savepoint
from millpond.operations.inspect import verify
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder


@pytest.fixture
def stateless(built: CheckpointBuilder, tmp_path: Path) -> Path:
    savepoint.fork(built.root, tmp_path / "stateless", drop_operators=[0])
    return tmp_path / "stateless"


def _partitions(root: Path, batch: int) -> str:
    metadata = json.loads((root / f"offsets/{batch}").read_text().split("\n")[1])
    return str(metadata["conf"]["spark.sql.shuffle.partitions"])


@pytest.mark.parametrize("format", ["native", "canonical"])
@pytest.mark.parametrize("partitions", [None, 3])
def test_a_savepoint_can_be_restored(
    stateless: Path, tmp_path: Path, format: str, partitions: int | None
) -> None:
    report = savepoint.create(stateless, tmp_path / "saved", format=format)
    assert (report.operators, report.keys) == (0, 0)
    assert savepoint.verify(tmp_path / "saved").ok
    for dry_run in (True, False):
        savepoint.restore(
            tmp_path / "saved", tmp_path / "new", partitions=partitions, dry_run=dry_run
        )
    assert verify(LocalStorage(str(tmp_path / "new")), "new").ok
    assert not (tmp_path / "new/state").exists()
    assert _partitions(tmp_path / "new", 5) == str(partitions or 2)


def test_a_fork_can_have_other_partitions(stateless: Path, tmp_path: Path) -> None:
    savepoint.fork(stateless, tmp_path / "new", partitions=3, max_parallelism=48)
    assert verify(LocalStorage(str(tmp_path / "new")), "new").ok
    assert _partitions(tmp_path / "new", 5) == "3"


def test_two_of_them_are_equal(built: CheckpointBuilder, stateless: Path, tmp_path: Path) -> None:
    savepoint.create(stateless, tmp_path / "saved", format="canonical")
    same = savepoint.diff(stateless, tmp_path / "saved")
    assert same.equal and same.families == ()
    other = RowsBuilder(tmp_path / "other", spark_format=built.spark_format).build()
    (family,) = savepoint.diff(other.root, stateless).families
    assert (family.added, family.removed, family.changed, family.same) == (0, 8, 0, 0)
    (family,) = savepoint.diff(stateless, other.root).families
    assert (family.added, family.removed, family.changed, family.same) == (8, 0, 0, 0)
