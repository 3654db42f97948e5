"""Manifests in Spark checkpoint format 1.

Their names have no ids, so attempts of one version meet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format.manifest import decode_manifest
from millpond.model.ids import VersionId
from tests.agent_driver import CallError, Driver, Provider

MakeProvider = Callable[..., Provider]


@pytest.fixture
def make(tmp_path: Path) -> MakeProvider:
    counter = iter(range(1000))
    service = AgentService()

    def provider(**arguments: Any) -> Provider:
        options = {"gc.graceMs": "0", "gc.intervalMs": "0", "commit.fsync": "false"}
        local = tmp_path / f"local-{next(counter)}"
        return Provider(
            service, tmp_path / "ckpt", local, options=options, retain_versions=2, **arguments
        )

    return provider


def carried_on(provider: Provider, until: int) -> None:
    while provider.version < until:
        provider.commit()


def manifest_id(provider: Provider, version: int) -> str:
    return decode_manifest(provider.read_stored(f"{version}.manifest")).id


def two_attempts(make: MakeProvider) -> tuple[Provider, Provider]:
    """Return two providers that have both committed version 3.

    The first one committed last, so the file is its own.
    """
    won, lost = make(), make()
    won.open(0)
    carried_on(won, 2)
    lost.open(2)
    lost.commit()
    won.commit()
    return won, lost


def test_a_manifest_that_comes_late_replaces_none_that_is_used(make: MakeProvider) -> None:
    won, lost = two_attempts(make)
    won.snapshot()
    carried_on(won, 6)
    won.collect(VersionId(6))
    assert won.stored(".changelog") == ["4.changelog", "5.changelog", "6.changelog"]
    with pytest.raises(CallError, match="another attempt") as caught:
        lost.snapshot()
    assert caught.value.kind is ErrorKind.OBJECT_EXISTS
    assert make().open(6) == won.state


def test_nor_while_both_changelogs_are_there(make: MakeProvider) -> None:
    won, lost = two_attempts(make)
    won.snapshot()
    with pytest.raises(CallError):
        lost.snapshot()
    assert manifest_id(won, 3) == won.id
    carried_on(won, 4)
    with pytest.raises(CallError):
        lost.snapshot()
    assert make().open(4) == won.state


def test_one_that_nobody_would_use_makes_way(make: MakeProvider) -> None:
    won, lost = two_attempts(make)
    lost.snapshot()
    won.snapshot()
    assert manifest_id(won, 3) == won.id
    carried_on(won, 6)
    won.collect(VersionId(6))
    assert make().open(6) == won.state


def test_the_next_version_tells_whose_snapshot_counts(make: MakeProvider) -> None:
    """The file of the version is of another attempt.

    But the driver went on with what this attempt holds.
    """
    won, lost = make(), make()
    won.open(0)
    carried_on(won, 2)
    lost.open(2)
    won.commit()
    won.snapshot()
    carried_on(won, 4)
    lost.commit()  # its task was only slow
    with pytest.raises(CallError):
        lost.snapshot()
    assert manifest_id(won, 3) == won.lineage[0]
    assert make().open(4, snapshot=VersionId(3)) == won.state
    carried_on(won, 6)
    won.collect(VersionId(6))
    assert make().open(6) == won.state


def test_after_a_going_back_a_new_snapshot_replaces_the_old_one(make: MakeProvider) -> None:
    old, late = make(), make()
    late.open(0)
    carried_on(late, 3)
    old.open(0)
    driver = Driver(old.checkpoint, 1)
    while old.version < 5:
        driver.record(old.commit())
        old.snapshot()
    driver.go_back(2)
    new = make()
    new.open(2)
    driver.record(new.commit())
    new.snapshot()
    assert manifest_id(new, 3) == new.id, (
        "the version that was built on the old snapshot is not committed any more"
    )
    with pytest.raises(CallError):
        late.snapshot()
    assert manifest_id(new, 3) == new.id


def test_a_damaged_one_is_replaced(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    carried_on(provider, 2)
    provider.snapshot()
    provider.replace_stored("2.manifest", b"rubbish")
    provider.publish(*provider.rocksdb_checkpoint())
    assert manifest_id(provider, 2) == provider.id


def test_the_answer_was_lost(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    carried_on(provider, 2)
    provider.snapshot()
    provider.publish(*provider.rocksdb_checkpoint())
    assert make().open(2) == provider.state
