"""What a store that is loaded again leaves on the executor's disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.harness import Harness, ProviderError, millponds_own, module_harness
from integration.processes import wait_until
from integration.provider import Provider
from integration.store_cases import PLAIN, open_provider
from tests.s3_server import HADOOP, Fault, Request, s3_server

pytestmark = [pytest.mark.spark, millponds_own]

_ROWS = 500

harness = module_harness


def _open(
    harness: Harness,
    tmp_path: Path,
    *,
    conf: Mapping[str, str] | None = None,
    hadoop: Mapping[str, str] | None = None,
) -> Provider:
    settings = {"millpond.restore.warmUp": "false", **(conf or {})}
    return open_provider(
        harness,
        tmp_path / "checkpoint",
        schema=PLAIN,
        operator="dedupe",
        conf=settings,
        hadoop=hadoop,
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


def test_a_snapshot_on_its_way_outlives_two_loads(harness: Harness, tmp_path: Path) -> None:
    """So does one of a store that goes to another executor and comes back, batch by batch."""
    provider = _open(harness, tmp_path)
    for version in range(3):
        _batch(provider, version)
    provider.store(3).abort()  # proves it committed
    harness.hold("snapshot.upload")
    snapshot = harness.begin("snapshot", p=provider.name)
    wait_until(harness.is_holding, seconds=60, what="the snapshot")
    for version in (1, 2):
        _check(provider, version)
    harness.let_go()
    harness.join(snapshot)
    assert len(list(tmp_path.rglob("3*.manifest"))) == 1
    assert not list(harness.local_dir.rglob("snapshot-*"))
    provider.close()
    provider = _open(harness, tmp_path)
    _check(provider, 3)
    provider.close()


def test_a_restore_that_failed_leaves_no_files_for_the_next(
    harness: Harness, tmp_path: Path
) -> None:
    """With those of half a restore, a state of more than half of the disk has no room."""
    with s3_server() as server:
        conf = {
            "millpond.storage.uri": f"s3://{server.bucket()}/states",
            "millpond.storage.s3.endpoint": server.endpoint,
            "millpond.storage.cache.size": "0",
        }
        writer = _open(harness, tmp_path, conf=conf, hadoop=HADOOP)
        (tmp_path / "checkpoint/metadata").write_text('{"id":"the-query"}')
        for version in range(3):
            _batch(writer, version)
            writer.store(version + 1).abort()
            writer.snapshot()
        writer.close()
        fetched: list[str] = []

        def refuse_the_second(request: Request) -> Fault | None:
            if request.operation != "GET" or not request.path.endswith(".sst"):
                return None
            fetched.append(request.path)
            return Fault(403, "AccessDenied") if len(fetched) > 1 else None

        provider = _open(harness, tmp_path, conf=conf, hadoop=HADOOP)
        with server.faults(refuse_the_second), pytest.raises(ProviderError, match="STORAGE_DENIED"):
            provider.read_store(3)
        assert _tiers(harness) == ["db-1.unfinished"]
        _check(provider, 3)
        assert _tiers(harness) == ["db-2"]
        provider.close()


def test_a_run_that_has_ended_leaves_no_files_for_the_next(
    harness: Harness, tmp_path: Path
) -> None:
    """Spark closes its stores up to two minutes later."""
    first = _open(harness, tmp_path)
    _batch(first, 0)
    first.store(1).abort()
    first.snapshot()
    second = _open(harness, tmp_path)
    assert len(_tiers(harness)) == 1
    _batch(second, 1)
    assert len(_tiers(harness)) == 1, "those of the second"
    _check(first, 1)
    first.close()
    _check(second, 2)
    second.close()
