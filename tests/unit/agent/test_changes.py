"""The change feed of the protocol, and openings from a chosen snapshot, with real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.model.ids import VersionId, new_id
from tests.agent_driver import CallError, Provider

MakeProvider = Callable[..., Provider]


@pytest.fixture
def make(tmp_path: Path) -> MakeProvider:
    service, counter = AgentService(), iter(range(1000))

    def provider(**arguments: Any) -> Provider:
        return Provider(
            service, tmp_path / "ckpt", tmp_path / f"local-{next(counter)}", **arguments
        )

    return provider


def committed(provider: Provider, count: int) -> list[VersionId]:
    """Make `count` commits on the empty state."""
    provider.open(0)
    return [provider.commit() for _ in range(count)]


@pytest.mark.parametrize("spark_format", [1, 2])
def test_changes_are_those_of_the_versions_asked_for(make: MakeProvider, spark_format: int) -> None:
    writer = make(spark_format=spark_format)
    versions = committed(writer, 5)
    reader = make(spark_format=spark_format)
    for start in range(1, 6):
        for end in range(start, 6):
            id = versions[end - 1].id if spark_format == 2 else None
            assert reader.changes(start, end, id) == tuple(v.id for v in versions[start - 1 : end])


def test_changes_follow_the_lineage_of_the_id(make: MakeProvider) -> None:
    """There are two attempts of version 2. The one that version 3 was built on counts."""
    winner, loser = make(spark_format=2), make(spark_format=2)
    first, *_ = committed(winner, 1)
    loser.open(1, first.id)
    second, lost = winner.commit(), loser.commit()
    third = winner.commit()
    assert make(spark_format=2).changes(1, 3, third.id) == (first.id, second.id, third.id)
    assert make(spark_format=2).changes(2, 2, lost.id) == (lost.id,)


def test_changes_are_read_across_snapshots(make: MakeProvider) -> None:
    writer = make()
    writer.open(0)
    versions = []
    for _ in range(4):
        versions.append(writer.commit())
        writer.snapshot()
    assert make().changes(1, 4) == tuple(v.id for v in versions)


def test_collected_changes_have_expired(make: MakeProvider) -> None:
    writer = make(retain_versions=2)
    writer.open(0)
    for _ in range(6):
        writer.commit()
        writer.snapshot()
    writer.options["gc.graceMs"] = 0
    writer.collect(VersionId(6))
    assert "4.changelog" not in writer.stored()
    with pytest.raises(CallError, match="changes are kept from version 6 on") as caught:
        make().changes(3, 6)
    assert caught.value.kind is ErrorKind.VERSION_EXPIRED


def test_a_lost_changelog_is_missing_and_not_expired(make: MakeProvider) -> None:
    writer = make()
    committed(writer, 4)
    (writer.directory / "3.changelog").unlink()
    with pytest.raises(CallError, match=r"3\.changelog") as caught:
        make().changes(2, 4)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING
    assert len(make().changes(4, 4)) == 1


def test_changes_of_the_future_are_not_there(make: MakeProvider) -> None:
    committed(make(), 2)
    with pytest.raises(CallError, match="the newest version is 2") as caught:
        make().changes(2, 3)
    assert caught.value.kind is ErrorKind.VERSION_NOT_FOUND


def test_the_changes_of_a_rewritten_state_are_not_known(make: MakeProvider) -> None:
    writer = make()
    committed(writer, 3)
    writer.open(3, load_empty=True)
    id = new_id()
    writer.call("publish_changelog", version=4, id=id, staged=writer.stage(4, id, empty_base=True))
    for start in (2, 4):
        with pytest.raises(CallError, match="version 4 was written anew") as caught:
            make().changes(start, 4)
        assert caught.value.kind is ErrorKind.VERSION_NOT_FOUND


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_chosen_snapshot_and_what_was_written_since(
    make: MakeProvider, spark_format: int
) -> None:
    writer = make(spark_format=spark_format)
    writer.open(0)
    versions = []
    for number in range(1, 7):
        versions.append(writer.commit())
        if number in (2, 5):
            writer.snapshot()
    last = versions[-1]
    id = last.id if spark_format == 2 else None
    for snapshot in (versions[1], versions[4], VersionId(2)):
        reader = make(spark_format=spark_format)
        assert reader.open(6, id, snapshot=snapshot) == tuple(v.id for v in versions)
        assert reader.snapshot_version == snapshot.version
    for absent in (VersionId(3), VersionId(6)):
        with pytest.raises(
            CallError, match="has no snapshot on this lineage; there are: 2, 5"
        ) as caught:
            make(spark_format=spark_format).open(6, id, snapshot=absent)
        assert caught.value.kind is ErrorKind.VERSION_NOT_FOUND
    with pytest.raises(CallError, match="from a snapshot of version 5") as caught:
        make(spark_format=spark_format).open(
            4, versions[3].id if id else None, snapshot=VersionId(5)
        )
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_a_snapshot_of_another_attempt_is_not_on_the_lineage(make: MakeProvider) -> None:
    winner, loser = make(spark_format=2), make(spark_format=2)
    winner.open(0)
    loser.open(0)
    won, lost = winner.commit(), loser.commit()
    loser.snapshot()
    second = winner.commit()
    for snapshot in (lost, won, VersionId(1)):
        with pytest.raises(CallError, match="no snapshot on this lineage") as caught:
            make(spark_format=2).open(2, second.id, snapshot=snapshot)
        assert caught.value.kind is ErrorKind.VERSION_NOT_FOUND


def test_a_damaged_chosen_snapshot_is_not_passed_over(make: MakeProvider) -> None:
    writer = make()
    writer.open(0)
    for _ in range(3):
        writer.commit()
        writer.snapshot()
    (writer.directory / "2.manifest").write_bytes(b"damage")
    with pytest.raises(CallError, match=r"2\.manifest is unusable") as caught:
        make().open(3, snapshot=VersionId(2))
    assert caught.value.kind is ErrorKind.VERSION_NOT_FOUND
