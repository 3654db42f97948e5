"""What is shown of partitions that a rescale took away, until their files go."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from millpond import checkpoint, savepoint
from millpond.cli.main import main
from millpond.operations.inspect.anatomy import group_counts
from millpond.storage import LocalStorage
from tests.row_checkpoints import HashedBuilder


@pytest.fixture(params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def rescaled(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A query of four partitions, now of two."""
    built = HashedBuilder(tmp_path / "query", spark_format=request.param).build()
    savepoint.fork(built.root, tmp_path / "four", partitions=4)
    millpond.rescale(tmp_path / "four", 2, file_sink="none")
    return tmp_path / "four"


def test_their_keys_do_not_count(rescaled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = millpond.read_state(rescaled).num_rows
    (operator,) = checkpoint.show(rescaled).operators
    stores = {store.partition: store for store in operator.stores}
    assert {p for p, store in stores.items() if store.removed} == {2, 3}
    assert sum(store.keys or 0 for store in operator.stores) == rows
    assert stores[2].slots == () and stores[2].changelogs == 1
    assert main(["checkpoint", "show", str(rescaled)]) == 0
    told = capsys.readouterr().out
    assert "partitions 2 to 3 are gone" in told
    (total,) = [line.split() for line in told.splitlines() if line.split()[:1] == ["total"]]
    assert total[1] == str(rows)


def test_their_key_groups_do_not_count(rescaled: Path) -> None:
    (counts,) = group_counts(LocalStorage(str(rescaled)), "it")
    assert len(counts.groups) == 2  # pages number key groups by it
    total = sum(sum(groups) for groups in counts.groups if groups is not None)
    assert total == millpond.read_state(rescaled).num_rows
