"""What collections delete and what they leave, through the agent."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator

import pytest

from millpond.errors import ErrorKind, UnavailableError
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.operations.inspect.verify import verify
from millpond.storage import LocalStorage, ObjectInfo
from tests.agent_driver import CallError, Provider
from tests.unit.store.conftest import MakeProvider
from tests.unit.store.histories import Clock, history, names, recorded


@pytest.mark.parametrize("spark_format", [1, 2])
def test_retained_versions_and_what_they_need_stay(make: MakeProvider, spark_format: int) -> None:
    provider = make(spark_format=spark_format, retain_versions=4)
    versions = history(provider, 12, 2, 4, 6, 8, 10)
    before = {n: os.path.getsize(provider.directory / n) for n in provider.stored()}
    answer = provider.collect(versions[12])
    # Versions 9 to 12 are retained. The newest snapshot at or below 9 is that of 8.
    kept = {int(n.split(".")[0].split("_")[0]): n for n in provider.stored(".changelog")}
    assert sorted(kept) == [9, 10, 11, 12]
    assert sorted(int(n.split(".")[0].split("_")[0]) for n in provider.stored(".manifest")) == [
        8,
        10,
    ]
    gone = before.keys() - set(provider.stored())
    assert answer == {"deleted_files": len(gone), "deleted_bytes": sum(before[n] for n in gone)}
    for version in versions[9:]:
        state = make(spark_format=spark_format).open(
            version.version, version.id if spark_format == 2 else None
        )
        assert state == tuple(v.id for v in versions[1 : version.version + 1])
    assert provider.collect(versions[12]) == {"deleted_files": 0, "deleted_bytes": 0}


def test_an_expired_version_says_so(make: MakeProvider) -> None:
    provider = make(retain_versions=4)
    versions = history(provider, 12, 4, 8)
    provider.collect(versions[12])
    with pytest.raises(
        CallError, match="version 3 has expired: the oldest that is kept is 8"
    ) as caught:
        make(retain_versions=4).open(3)
    assert caught.value.kind is ErrorKind.VERSION_EXPIRED


def test_without_a_snapshot_every_changelog_stays(make: MakeProvider) -> None:
    provider = make(retain_versions=2)
    versions = history(provider, 8)
    assert provider.collect(versions[8])["deleted_files"] == 0
    assert len(names(provider)) == 8


def test_a_damaged_snapshot_is_no_base(make: MakeProvider) -> None:
    provider = make(retain_versions=2)
    versions = history(provider, 8, 3, 6)
    (provider.directory / "6.manifest").write_bytes(b"rubbish")
    provider.collect(versions[8])
    assert make(retain_versions=2).open(8) == provider.state
    assert "4.changelog" in names(provider) and "3.manifest" in names(provider)


def test_a_young_snapshot_is_no_base_yet(make: MakeProvider, clock: Clock) -> None:
    provider = make(retain_versions=2, grace_ms=60_000)
    versions = history(provider, 8, 3, 6)
    assert provider.collect(versions[8])["deleted_files"] == 0
    clock.offset_ms = 61_000
    assert provider.collect(versions[8])["deleted_files"] > 0
    assert names(provider)[0] == "6.manifest"


def test_nothing_goes_where_the_lineage_cannot_be_read(make: MakeProvider) -> None:
    provider = make(retain_versions=2)
    versions = history(provider, 8, 3, 6)
    (provider.directory / "8.changelog").write_bytes(b"rubbish")
    before = provider.stored()
    assert provider.collect(versions[8])["deleted_files"] == 0
    assert provider.stored() == before


def test_versions_above_the_anchor_are_never_touched(make: MakeProvider) -> None:
    provider = make(retain_versions=1, spark_format=2)
    versions = history(provider, 8, 2, 4, 6)
    above = [n for n in names(provider) if int(n.split("_")[0]) >= 5]
    provider.collect(versions[5])
    assert [n for n in names(provider) if int(n.split("_")[0]) >= 5] == above


def test_siblings_of_the_anchor_stay_and_older_ones_go_after_grace(
    make: MakeProvider, clock: Clock
) -> None:
    a, b = (make(spark_format=2, retain_versions=10, grace_ms=60_000) for _ in range(2))
    first = history(a, 1)[1]
    b.open(1, first.id)
    lost = b.commit()
    second = a.commit()
    a.collect(second)
    assert f"{lost}.changelog" in names(a), (
        "the driver may still choose the other attempt of version 2"
    )
    third = a.commit()
    a.collect(third)
    assert f"{lost}.changelog" in names(a), "the file is too young"
    clock.offset_ms = 61_000
    a.collect(third)
    assert names(a) == [f"{v}.changelog" for v in (first, second, third)]


def test_a_sibling_chain_is_dropped_and_the_one_that_won_stays(make: MakeProvider) -> None:
    a, b = (make(spark_format=2, retain_versions=10) for _ in range(2))
    first = history(a, 1)[1]
    b.open(1, first.id)
    lost = a.commit()
    a.snapshot()
    won = b.commit()
    b.snapshot()
    third = b.commit()
    b.collect(third)
    assert names(b) == sorted(
        [f"{first}.changelog", f"{won}.changelog", f"{won}.manifest", f"{third}.changelog"]
    )
    assert make(spark_format=2).open(3, third.id) == (first.id, won.id, third.id)
    with pytest.raises(CallError):
        make(spark_format=2).open(2, lost.id)


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("snapshots", [(), (4, 10)])
def test_a_provider_of_a_run_that_was_gone_back_from_collects_nothing(
    make: MakeProvider, clock: Clock, spark_format: int, snapshots: tuple[int, ...]
) -> None:
    """A run came to version 12. Its driver died, and an executor lives on.

    The next run began again from version 5.
    """
    old = make(spark_format=spark_format, retain_versions=2, grace_ms=600_000)
    versions = history(old, 12, *snapshots)
    driver = recorded(old, versions)
    driver.go_back(5)
    new = make(spark_format=spark_format, retain_versions=2, grace_ms=600_000)
    new.open(5, versions[5].id if spark_format == 2 else None)
    for _ in range(4):
        driver.record(new.commit())
    tip = VersionId(9, new.id)
    clock.offset_ms = 11 * 60_000
    before = new.stored()
    assert old.collect(versions[12])["deleted_files"] == 0
    assert new.stored() == before
    reader = make(spark_format=spark_format, retain_versions=2)
    assert reader.open(9, tip.id if spark_format == 2 else None) == new.state
    assert new.collect(tip)["deleted_files"] >= (3 if spark_format == 2 else 0), (
        "the new run collects the old lineage"
    )
    assert (
        make(spark_format=spark_format).open(9, tip.id if spark_format == 2 else None) == new.state
    )


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_commit_log_that_spark_purged_proves_nothing(
    make: MakeProvider, spark_format: int
) -> None:
    provider = make(spark_format=spark_format, retain_versions=2)
    versions = history(provider, 8, 3, 6)
    driver = recorded(provider, versions)
    assert provider.collect(versions[8])["deleted_files"] > 0
    again = make(spark_format=spark_format, retain_versions=2, partition=1)
    versions = history(again, 8, 3, 6)
    (driver.checkpoint / "commits/7").unlink()
    assert again.collect(versions[8])["deleted_files"] == 0


@pytest.mark.parametrize("spark_format", [1, 2])
def test_spark_may_purge_its_commit_log_while_the_agent_looks(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """With few batches retained, short batches and a slow storage each collection is too late."""
    provider = make(spark_format=spark_format, retain_versions=2)
    versions = history(provider, 8, 3, 6)
    driver = recorded(provider, versions)
    listed = LocalStorage.list

    def purging(storage: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        if (driver.checkpoint / "commits/7").exists():
            driver.record(VersionId(10, "0" * 16))
            (driver.checkpoint / "commits/7").unlink()
        return listed(storage, prefix)

    monkeypatch.setattr(LocalStorage, "list", purging)
    assert provider.collect(versions[8])["deleted_files"] > 0


@pytest.mark.parametrize("spark_format", [1, 2])
def test_somebody_may_go_back_while_the_agent_looks(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    provider = make(spark_format=spark_format, retain_versions=2)
    versions = history(provider, 8, 3, 6)
    driver = recorded(provider, versions)
    listed = LocalStorage.list

    def going_back(storage: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        for batch in range(3, 8):
            (driver.checkpoint / f"commits/{batch}").unlink(missing_ok=True)
        return listed(storage, prefix)

    monkeypatch.setattr(LocalStorage, "list", going_back)
    assert provider.collect(versions[8])["deleted_files"] == 0


def test_a_clock_that_was_set_back_does_not_end_collections(
    make: MakeProvider, clock: Clock
) -> None:
    provider = make(retain_versions=1, interval_ms=10_000)
    clock.offset_ms = 365 * 86_400_000
    versions = history(provider, 3, 1, 2)
    assert provider.collect(versions[3], force=False)["deleted_files"] > 0
    provider.snapshot()
    version = provider.commit()
    clock.offset_ms = 0
    assert provider.collect(version, force=False)["deleted_files"] > 0


def test_another_attempt_in_the_commit_log_is_no_proof(make: MakeProvider) -> None:
    provider = make(spark_format=2, retain_versions=2)
    versions = history(provider, 8, 3, 6)
    driver = recorded(provider, versions)
    driver.record(VersionId(8, "0" * 16))
    assert provider.collect(versions[8])["deleted_files"] == 0
    driver.record(versions[8])
    assert provider.collect(versions[8])["deleted_files"] > 0


def test_a_damaged_commit_log_is_an_error_and_nothing_goes(make: MakeProvider) -> None:
    provider = make(spark_format=2, retain_versions=2)
    versions = history(provider, 8, 3, 6)
    recorded(provider, versions)
    (provider.checkpoint / "commits/7").write_text("rubbish")
    before = provider.stored()
    with pytest.raises(CallError) as caught:
        provider.collect(versions[8])
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED and provider.stored() == before


@pytest.mark.parametrize("spark_format", [1, 2])
def test_what_is_below_the_base_goes_by_age_too(
    make: MakeProvider, clock: Clock, spark_format: int
) -> None:
    provider = make(spark_format=spark_format, retain_versions=2, grace_ms=60_000)
    versions = history(provider, 8, 3, 6)
    clock.offset_ms = 61_000
    late = names(provider)[2]
    os.utime(provider.directory / late, (time.time() + 30, time.time() + 30))
    provider.collect(versions[8])
    assert names(provider)[0] == late, "the file is younger than the grace period"
    clock.offset_ms = 100_000
    provider.collect(versions[8])
    assert names(provider)[0].startswith("6") and names(provider)[0].endswith(".manifest")


def test_foreign_and_spark_files_are_left_alone(make: MakeProvider, clock: Clock) -> None:
    provider = make(retain_versions=1)
    versions = history(provider, 4, 1, 2, 3, 4)
    schema = provider.directory / "_metadata" / "schema"
    schema.parent.mkdir()
    schema.write_bytes(b"x")
    notes = provider.directory / "notes.txt"
    notes.write_bytes(b"x")
    clock.offset_ms = 10_000_000
    provider.collect(versions[4])
    assert schema.exists() and notes.exists()


def test_the_interval_between_collections_is_kept_unless_forced(
    make: MakeProvider, clock: Clock
) -> None:
    provider = make(retain_versions=1, interval_ms=10_000)
    versions = history(provider, 3, 1, 2)
    assert provider.collect(versions[3], force=False)["deleted_files"] > 0
    provider.snapshot()
    version = provider.commit()
    assert provider.collect(version, force=False)["deleted_files"] == 0
    clock.offset_ms = 10_001
    assert provider.collect(version, force=False)["deleted_files"] > 0
    provider.snapshot()
    assert provider.collect(provider.commit())["deleted_files"] > 0


def partitions_are(provider: Provider, batch: int, partitions: int) -> None:
    """Write what Spark's log says of the last batch."""
    offsets = provider.checkpoint / "offsets" / str(batch)
    offsets.parent.mkdir(exist_ok=True)
    conf = {"spark.sql.shuffle.partitions": str(partitions)}
    offsets.write_text(
        "v1\n" + json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}) + "\n{}"
    )


@pytest.mark.parametrize("spark_format", [1, 2])
def test_files_of_partitions_that_a_rescale_removed_go(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    zero = make(retain_versions=2, spark_format=spark_format)
    versions = history(zero, 6, 3)
    recorded(zero, versions)
    old = make(partition=1, spark_format=spark_format)
    named = make(partition=1, name="left-keyToNumValues", spark_format=spark_format)
    needed = make(partition=2, spark_format=spark_format)
    again = make(partition=3, spark_format=spark_format)
    for provider, until in ((old, 4), (named, 4), (needed, 5), (again, 4)):
        history(provider, until, 2)
    pinned = old.stored(".changelog")[0]
    pin = zero.checkpoint / layout.pin_key("mine")
    pin.parent.mkdir(parents=True)
    pin.write_text(json.dumps({"changelogs": [f"state/0/1/{pinned}"], "manifests": []}))
    listed, kept = LocalStorage.list, (names(needed), names(again))

    def comes_back(storage: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        if prefix == "state/0/3/":  # after all of the operator was listed
            new = layout.manifest_name(VersionId(8, "0" * 16), spark_format)
            (again.directory / new).write_bytes(b"of a rescale that adds partitions")
        return listed(storage, prefix)

    zero.collect(versions[6])
    assert len(names(old)) == 5, "the log does not tell how many partitions there are"
    partitions_are(zero, 5, 1)
    monkeypatch.setattr(LocalStorage, "list", comes_back)
    zero.collect(versions[6])
    assert (names(old), names(named)) == ([pinned], [])
    assert names(needed) == kept[0], "version 5 is retained"
    assert set(kept[1]) < set(names(again))


def test_a_collection_that_began_before_a_rescale_leaves_its_pin(make: MakeProvider) -> None:
    """A rescale comes between two steps of a collection.

    An executor of the run before lists the state. The rescale writes pins and manifests. Then the
    executor looks for pins.
    """
    provider = make(retain_versions=1)
    versions = history(provider, 4, 3)
    recorded(provider, versions)
    partitions_are(provider, 3, 1)
    pins = [provider.checkpoint / layout.rescale_pin_key(0, batch) for batch in (3, 4)]
    pins[0].parent.mkdir(parents=True)
    for pin in pins:
        pin.write_text(json.dumps({"changelogs": ["state/0/0/x.changelog"], "manifests": []}))
    provider.collect(versions[4])
    assert [pin.exists() for pin in pins] == [False, True], (
        "batch 3 made version 4, and nothing names that file"
    )


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_restore_that_a_collection_overtakes_is_planned_once_more(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """An executor lists a store.

    Another one takes a snapshot and deletes what the first one saw.
    """
    writer = make(spark_format=spark_format, retain_versions=2)
    versions = history(writer, 6)
    driver = recorded(writer, versions)
    listing, deleted = LocalStorage.list, list[int]()

    def overtaken(self: LocalStorage, prefix: str) -> list[ObjectInfo]:
        found = list(listing(self, prefix))
        if not deleted and prefix.startswith("state/0/0"):
            deleted.append(0)
            writer.snapshot()
            newest = writer.commit()
            driver.record(newest)
            deleted[0] = int(writer.collect(newest)["deleted_files"])
        return found

    reader = make(spark_format=spark_format)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "list", overtaken)
        opened = reader.open(6, versions[6].id if spark_format == 2 else None)
    assert opened == writer.state[:6]
    assert deleted == [6]


def test_a_lineage_that_cannot_be_read_is_told(make: MakeProvider) -> None:
    provider = make(retain_versions=2)
    versions = history(provider, 8, 2, 6)
    (newest,) = [name for name in provider.stored(".changelog") if name.startswith("8")]
    (provider.directory / newest).write_bytes(b"damaged")
    before = provider.stored()
    told = provider.collect(versions[8])
    assert told["problem"]["kind"] == "CHANGELOG_DAMAGED" and newest in told["problem"]["message"]
    assert told["deleted_files"] == 0 and provider.stored() == before


def test_pins_of_a_rescale_that_cannot_be_looked_at_are_told(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make(retain_versions=2)
    versions = history(provider, 8, 2, 4, 6)

    def failing(*_: object, **__: object) -> None:
        raise UnavailableError("no answer", kind=ErrorKind.STORAGE_UNAVAILABLE)

    monkeypatch.setattr("millpond.agent.collecting.read_spark_metadata", failing)
    told = provider.collect(versions[8])
    assert told["problem"]["kind"] == "STORAGE_UNAVAILABLE"
    assert told["deleted_files"] > 0, "the rest is done"


def test_a_store_that_others_carried_on_is_not_reported(
    make: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """An executor still has the store at an old version.

    It looks for files that the new owner has collected.
    """
    owner, stale = make(retain_versions=2), make(retain_versions=2)
    versions = history(owner, 8, 1, 6, 7)
    owner.collect(versions[8])
    with caplog.at_level("INFO", logger="millpond.agent.collecting"):
        stale.collect(versions[2])
    (record,) = [r for r in caplog.records if "nothing is collected" in r.getMessage()]
    assert record.levelname == "INFO"


def _problems(provider: Provider) -> list[object]:
    """Return what `verify` finds, but for the made-up SSTs that RocksDB cannot open."""
    found = verify(LocalStorage(str(provider.directory.parents[2])), "x").problems
    return [problem for problem in found if "RocksDB cannot open it" not in problem.message]


# In format 1, the straggler's file may have the version of the oldest snapshot that is kept. Then
# it hides that snapshot from a reader of just this version, which has expired. In format 2 the two
# files have different names.
@pytest.mark.parametrize(
    ("spark_format", "late_version"), [(1, 3), (1, 6), (1, 8), (2, 3), (2, 6), (2, 7), (2, 8)]
)
def test_a_commit_that_comes_after_its_version_was_collected_harms_nothing(
    make: MakeProvider, spark_format: int, late_version: int
) -> None:
    """A straggler wakes up, after its version or all that it was built on has expired.

    There are snapshots at 6 and at 7.
    """
    owner = make(spark_format=spark_format, retain_versions=2)
    versions = history(owner, late_version - 1, *(v for v in (6, 7) if v < late_version))
    straggler = make(spark_format=spark_format, retain_versions=2)
    base = versions[-1]
    straggler.open(base.version, base.id if spark_format == 2 else "")
    while owner.version < 9:
        versions.append(owner.commit())
        if owner.version in (6, 7):
            owner.snapshot()
    owner.collect(versions[9])
    late = straggler.commit()
    assert late.version == late_version and late.id != versions[late_version].id

    assert _problems(owner) == []
    for version in (8, 9) if late_version < 8 else (9,):
        other = make(spark_format=spark_format, retain_versions=2)
        restored = other.open(version, versions[version].id if spark_format == 2 else "")
        if spark_format == 2 or late_version <= 7:
            assert restored == owner.state[:version]
        else:
            assert restored == (*owner.state[:7], late.id, owner.state[8])[:version]
    versions.append(owner.commit())
    owner.snapshot()
    owner.collect(versions[10])
    versions.append(owner.commit())
    owner.collect(versions[11])
    assert (
        make(spark_format=spark_format).open(11, versions[11].id if spark_format == 2 else "")[-1]
        == versions[11].id
    )
    assert _problems(owner) == []


@pytest.mark.parametrize("seed", range(40))
def test_versions_that_two_executors_made_stay_restorable(make: MakeProvider, seed: int) -> None:
    """In format 1 the second attempt of a task replaces the file of the first one.

    Each executor goes on with what it has.
    """
    chance = random.Random(seed)
    executors = [make(spark_format=1, retain_versions=3) for _ in range(2)]
    for executor in executors:
        executor.open(0)
    for version in range(1, 13):
        attempts = [executor for executor in executors if chance.random() < 0.6] or [
            chance.choice(executors)
        ]
        for executor in attempts:
            if executor.version != version - 1:
                executor.open(version - 1)
        newest = [executor.commit() for executor in attempts][-1]
        for executor in executors:
            if executor.version > 0 and chance.random() < 0.3:
                try:
                    executor.snapshot()
                except CallError as e:
                    assert e.kind == "OBJECT_EXISTS", (
                        "only the other executor's snapshot stands in the way"
                    )
        chance.choice(executors).collect(newest)
        for retained in range(max(version - 2, 1), version + 1):
            assert len(make(spark_format=1, retain_versions=3).open(retained)) == retained


def test_a_changelog_that_is_replaced_within_a_tick_of_the_clock_is_read_again(
    make: MakeProvider,
) -> None:
    """Its size and its time are those of the one that an earlier collection has read."""
    first, second, third = (make(spark_format=1, retain_versions=3) for _ in range(3))
    history(first, 4)
    third.open(4)
    third.snapshot()
    second.open(3)
    second.commit()  # another version 4 than that of the snapshot
    first.commit()
    first.collect(VersionId(5))
    changelog = first.directory / "5.changelog"
    before = changelog.stat()
    second.commit()
    assert changelog.stat().st_size == before.st_size
    os.utime(changelog, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(3):
        first.commit()
    first.collect(VersionId(8))
    for _ in range(4):
        second.commit()
    assert make(spark_format=1, retain_versions=3).open(9) == second.state
