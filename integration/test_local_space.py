"""What a store that is loaded again leaves on the executor's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.harness import Harness, module_harness, providers_to_test
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.provider import Provider
from integration.store_cases import PLAIN, open_provider

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(MILLPOND not in providers_to_test(), reason="about Millpond's own tiers"),
]

_ROWS = 500

harness = module_harness


def _open(harness: Harness, tmp_path: Path) -> Provider:
    conf = {"millpond.restore.warmUp": "false"}
    return open_provider(
        harness, tmp_path / "checkpoint", schema=PLAIN, operator="dedupe", conf=conf
    )


def _batch(provider: Provider, version: int) -> None:
    """Make the version after `version`. Each has its number in every row."""
    store = provider.store(version)
    for n in range(_ROWS):
        store.put([f"key {n}", n], [f"version {version + 1}"])
    store.commit()


def _check(provider: Provider, version: int) -> None:
    store = provider.read_store(version)
    rows = {tuple(key): value for key, value in store.scan()}
    assert rows == {(f"key {n}", n): [f"version {version}"] for n in range(_ROWS)}
    store.abort()


def _tiers(harness: Harness) -> list[str]:
    return [path.name for path in sorted(harness.local_dir.rglob("db-*"))]


def test_a_load_leaves_no_files_of_the_one_before(harness: Harness, tmp_path: Path) -> None:
    """A state that fills more than half of the disk could not be loaded again."""
    writer = _open(harness, tmp_path)
    for version in range(3):
        _batch(writer, version)
        writer.read_store(version + 1).abort()
        writer.snapshot()
    writer.close()
    provider = _open(harness, tmp_path)
    for loads, version in enumerate((3, 2, 3, 2), 1):
        _check(provider, version)
        assert _tiers(harness) == [f"db-{loads}"]
    provider.close()
    assert _tiers(harness) == []


def test_a_snapshot_on_its_way_outlives_a_load(harness: Harness, tmp_path: Path) -> None:
    """It has links of its own to the files that the load deletes."""
    provider = _open(harness, tmp_path)
    _batch(provider, 0)
    _batch(provider, 1)
    provider.store(2).abort()  # proves it committed
    harness.hold("snapshot.upload")
    snapshot = harness.begin("snapshot", p=provider.name)
    wait_until(harness.is_holding, seconds=60, what="the snapshot")
    assert len(_tiers(harness)) == 1
    _check(provider, 1)
    assert _tiers(harness) == [], "nothing was loaded, or not from changelogs"
    harness.let_go()
    harness.join(snapshot)
    assert len(list(tmp_path.rglob("2*.manifest"))) == 1
    provider.close()
    provider = _open(harness, tmp_path)
    _check(provider, 2)
    provider.close()
