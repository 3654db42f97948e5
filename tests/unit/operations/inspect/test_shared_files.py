"""Figures of a query whose partitions share files: after a rescale that moved no row, the manifests
of several name the same ones, until each has a snapshot of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import checkpoint, savepoint
from millpond.cli.main import main
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect.anatomy import anatomy
from millpond.operations.rescale import rescale
from millpond.store.files import StoreFiles
from tests.checkpoints import CheckpointBuilder


@pytest.fixture(params=[2, 12])
def rescaled(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointBuilder:
    """A query of four partitions, now of two, or of twelve."""
    built = CheckpointBuilder(tmp_path / "query", partitions=4, groups=KeyGroups(48, 12)).build()
    rescale(built.storage, "it", request.param)
    return built


def composed(built: CheckpointBuilder) -> dict[StoreId, Manifest]:
    """Return the manifests that the rescale wrote."""
    found = {}
    for operator in checkpoint.show(built.root).operators:
        for view in operator.stores:
            files = StoreFiles(built.storage, StoreId(0, view.partition), built.spark_format)
            newest = max(files.refresh().manifests)
            manifest = files.read_manifest(newest)
            if manifest.composed:
                found[files.store] = manifest
    return found


def shared(built: CheckpointBuilder) -> dict[str, int]:
    """Return size by key of the SSTs and changelogs that a restore of the last batch reads."""
    sizes: dict[str, int] = {}
    for store, manifest in composed(built).items():
        sizes |= manifest.sizes(store)
    return sizes


def of_ssts(sizes: dict[str, int]) -> list[int]:
    return [size for key, size in sizes.items() if key.endswith(".sst")]


def test_the_files_of_a_store(rescaled: CheckpointBuilder) -> None:
    manifests = composed(rescaled)
    version = manifests[StoreId(0, 0)].version
    live = shared(rescaled)
    for store in [StoreId(0, partition) for partition in range(4)]:
        seen = anatomy(rescaled.storage, "it", store)
        if store in manifests:
            *_, own, both = seen.manifests[-1]
            assert (own, both) == (0, sum(manifests[store].sst_sizes(store).values()))
        told = {f"state/0/{store.partition}/sst/{sst.name}": sst.snapshots for sst in seen.ssts}
        assert {key for key, versions in told.items() if version in versions} == {
            key for key in live if key in told
        }
        assert all(versions == tuple(sorted(versions)) for versions in told.values())


def test_how_many_partitions_there_were(rescaled: CheckpointBuilder) -> None:
    shown = checkpoint.show(rescaled.root)
    assert (shown.first_partitions, shown.partitions) in {(4, 2), (4, 12)}


def test_snapshots_that_the_overview_shows(rescaled: CheckpointBuilder) -> None:
    manifests = composed(rescaled)
    (operator,) = checkpoint.show(rescaled.root).operators
    for view in operator.stores:
        store = StoreId(0, view.partition)
        if store in manifests:
            sizes = manifests[store].sst_sizes(store)
            newest = view.snapshots[-1]
            assert (newest.ssts, newest.bytes) == (len(sizes), sum(sizes.values()))
            assert len(sizes) > 0
    assert sum(view.newest_bytes for view in operator.stores) == sum(of_ssts(shared(rescaled)))


def test_a_savepoint_says_how_large_an_operator_is(
    rescaled: CheckpointBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    savepoint.create(rescaled.root, tmp_path / "saved")
    index = savepoint.show(tmp_path / "saved").index
    assert index.state_bytes(0) == sum(shared(rescaled).values())
    assert index.state_bytes(1) == 0
    assert main(["savepoint", "show", str(tmp_path / "saved")]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "stateStoreSave" in line]
    assert f"{index.state_bytes(0) / 1024:.1f} KiB" in row


def test_verify_counts_them_once(rescaled: CheckpointBuilder, tmp_path: Path) -> None:
    savepoint.fork(rescaled.root, tmp_path / "fork")
    savepoint.create(rescaled.root, tmp_path / "saved")
    sizes = of_ssts(shared(rescaled))
    for checked in (
        checkpoint.verify(tmp_path / "fork").checked,
        savepoint.verify(tmp_path / "saved").checked,
    ):
        assert (checked.ssts, checked.sst_bytes) == (len(sizes), sum(sizes))
    files = [p.stat().st_size for p in rescaled.root.rglob("*.sst")]
    checked = checkpoint.verify(rescaled.root).checked
    assert (checked.ssts, checked.sst_bytes) == (len(files), sum(files))
