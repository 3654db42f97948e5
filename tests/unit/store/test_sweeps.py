"""Sweeps of SSTs and staging files, through the agent."""

from __future__ import annotations

import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from millpond.agent.service import AgentService
from millpond.format import layout
from millpond.format.format_file import decode_format, encode_format
from millpond.format.manifest import decode_manifest
from millpond.storage import LocalStorage
from millpond.store.collection import announcements
from millpond.store.collection.survey import survey
from tests.agent_driver import CallError, Provider
from tests.unit.store.histories import Clock, history

MakeProvider = Callable[..., Provider]


def test_ssts_go_when_no_manifest_names_them(make: MakeProvider) -> None:
    provider = make(retain_versions=2)
    provider.open(0)
    for _ in range(6):
        version = provider.commit()
        provider.snapshot(compact=True)
    assert len(provider.stored(".sst")) == 6
    provider.collect(version)
    assert len(provider.stored(".sst")) == len(provider.stored(".manifest")) == 2
    assert make(retain_versions=2).open(6) == provider.state


def test_the_sweep_waits_for_the_grace_period_across_agents(
    make: MakeProvider, clock: Clock
) -> None:
    provider = make(retain_versions=2, grace_ms=60_000)
    provider.open(0)
    version = provider.commit()
    provider.snapshot()
    orphan = provider.directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    provider.collect(version)
    assert orphan.exists(), (
        "this collection is the first to see it unreferenced, however old it looks"
    )
    provider.service = AgentService(clock_ms=clock)
    clock.offset_ms = 30_000
    provider.collect(version)
    assert orphan.exists()
    clock.offset_ms = 61_000
    provider.collect(version)
    assert not orphan.exists()
    assert len(provider.stored(".sst")) == 1


def test_an_sst_goes_with_the_last_manifest_that_named_it(make: MakeProvider, clock: Clock) -> None:
    provider = make(retain_versions=2, grace_ms=60_000)
    provider.open(0)
    version = provider.commit()
    provider.snapshot(compact=True)
    (first,) = provider.stored(".sst")
    provider.collect(version)
    for _ in range(3):
        version = provider.commit()
    provider.snapshot(compact=True)
    clock.offset_ms = 59_000
    version = provider.commit()
    provider.collect(version)
    assert len(provider.stored(".manifest")) == 2, "a restore may have been planned with the first"
    clock.offset_ms = 61_000
    version = provider.commit()
    provider.collect(version)
    assert len(provider.stored(".manifest")) == 1
    assert first not in provider.stored(".sst") and len(provider.stored(".sst")) == 1
    assert make(retain_versions=2).open(version.version) == provider.state


def test_ssts_of_a_manifest_that_was_replaced_wait(make: MakeProvider, clock: Clock) -> None:
    """A restore may have begun with what the manifest said before."""
    provider = make(retain_versions=2, grace_ms=60_000)
    provider.open(0)
    version = provider.commit()
    provider.snapshot(compact=True)
    (first,) = provider.stored(".sst")
    clock.offset_ms = 61_000
    provider.collect(version)
    (manifest,) = provider.stored(".manifest")
    provider.replace_stored(manifest, None)
    provider.snapshot(compact=True)
    assert provider.stored(".manifest") == [manifest] and len(provider.stored(".sst")) == 2
    now_s = clock() / 1000
    os.utime(provider.directory / manifest, (now_s, now_s))
    provider.collect(version)
    assert first in provider.stored(".sst")


def test_one_unreadable_manifest_stops_the_sweep_of_the_operator(make: MakeProvider) -> None:
    sweeper, other = make(retain_versions=2), make(retain_versions=2, partition=1)
    versions = history(sweeper, 2, 1)
    history(other, 1, 1)
    orphan = sweeper.directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    damaged = other.directory / "1.manifest"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    told = sweeper.collect(versions[2])["problem"]
    assert orphan.exists()
    assert told["kind"] == "MANIFEST_DAMAGED" and told["message"].startswith("state/0/1/1.manifest")
    damaged.write_bytes(content)
    assert "problem" not in sweeper.collect(versions[2])
    assert not orphan.exists()


def test_partition_0_sweeps_for_all_and_the_others_do_not(make: MakeProvider) -> None:
    zero, one = make(), make(partition=1)
    versions = [history(p, 1, 1)[1] for p in (zero, one)]
    orphans = [p.directory / "sst" / ("0" * 32 + ".sst") for p in (zero, one)]
    for orphan in orphans:
        orphan.write_bytes(b"x")
    one.collect(versions[1])
    assert all(orphan.exists() for orphan in orphans)
    zero.collect(versions[0])
    assert not any(orphan.exists() for orphan in orphans)


def test_a_sweep_holds_no_listing_of_the_whole_operator(make: MakeProvider) -> None:
    """With 1,000 stores of 130 files it took 76 MB in one executor, twice if something went."""
    zero = make(retain_versions=2)
    versions = history(zero, 2, 1, 2)
    partitions, files = 30, 300
    for partition in range(1, partitions + 1):
        folder = zero.directory.parent / str(partition)
        folder.mkdir()
        for version in range(files):
            (folder / f"{version + 1}.changelog").touch()
    orphan = zero.directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    zero.collect(versions[2])
    assert not orphan.exists()
    orphan.write_bytes(b"x")
    tracemalloc.start()
    try:
        zero.collect(versions[2])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not orphan.exists()
    assert peak_bytes < 100 * partitions * files


def test_what_manifests_name_is_held_once(make: MakeProvider) -> None:
    """A sweep keeps it for the next one, and each snapshot has most SSTs of the one before."""
    provider = make(retain_versions=10)
    history(provider, 6, 2, 4, 6)
    storage = LocalStorage(str(provider.checkpoint))
    first = survey(storage, 0, {}, (), now_ms=2**60)
    history(make(retain_versions=10, partition=1), 2, 2)
    provider.commit()
    provider.snapshot()
    again = survey(storage, 0, first.marks, (), now_ms=2**60)
    for seen in (first, again):
        named = [key for _, keys in seen.marks.values() for key in keys]
        assert len(named) > len(set(named)) == len(set(map(id, named)))
    assert len(again.marks) == len(first.marks) + 2


def test_partitions_whose_folders_are_links_are_swept_too(
    make: MakeProvider, tmp_path: Path
) -> None:
    """Their stores work. After a rescale their manifests name SSTs of other partitions."""
    zero, one, named = make(), make(partition=1), make(partition=1, name="left-keyToNumValues")
    versions = [history(p, 1, 1)[1] for p in (zero, one, named)]
    for number, folder in enumerate((named.directory, one.directory)):
        folder.rename(tmp_path / f"moved-{number}")
        folder.symlink_to(tmp_path / f"moved-{number}")
    orphans = [p.directory / "sst" / ("0" * 32 + ".sst") for p in (zero, one, named)]
    for orphan in orphans:
        orphan.write_bytes(b"x")
    zero.collect(versions[0])
    assert [orphan.exists() for orphan in orphans] == [False, False, False]
    for number, provider in enumerate((one, named)):
        (provider.directory / f"{number + 7}.manifest").write_bytes(b"rubbish")
        orphans[0].write_bytes(b"x")
        zero.collect(versions[0])
        assert orphans[0].exists(), "nobody knows what the manifest names"
        (provider.directory / f"{number + 7}.manifest").unlink()


def test_of_a_join_the_first_store_sweeps(make: MakeProvider) -> None:
    stores = [
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    ]
    providers = [make(name=name) for name in stores]
    metadata = providers[0].checkpoint / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    infos = [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": 4} for name in stores]
    body = {
        "operatorInfo": {"operatorId": 0, "operatorName": "symmetricHashJoin"},
        "stateStoreInfo": infos,
    }
    metadata.write_text("v1\n" + json.dumps(body))
    versions = [history(p, 1, 1)[1] for p in providers]
    orphan = providers[3].directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    for provider, version in list(zip(providers, versions, strict=True))[1:]:
        provider.collect(version)
    assert orphan.exists()
    providers[0].collect(versions[0])
    assert not orphan.exists()
    assert metadata.exists()


def test_staging_files_of_the_dead_go_after_grace(make: MakeProvider, clock: Clock) -> None:
    provider = make(grace_ms=60_000)
    version = history(provider, 1, 1)[1]
    provider.stage(2, "0" * 15 + "1")
    (provider.directory / "sst" / (".staging-" + "0" * 32)).write_bytes(b"x")
    provider.collect(version)
    left = [n for n in provider.stored() if ".staging-" in n]
    assert len(left) == 2
    clock.offset_ms = 3_600_000
    provider.collect(version)
    assert [n for n in provider.stored() if ".staging-" in n] == left, (
        "the sweeper's clock is ahead of the storage's, by which a batch may just have written"
    )
    clock.offset_ms = 0
    for name in left:
        os.utime(provider.directory / name, (time.time() - 61, time.time() - 61))
    provider.collect(version)
    assert [n for n in provider.stored() if ".staging-" in n] == []


def test_a_staging_file_waits_for_maintenance_that_comes_rarely(make: MakeProvider) -> None:
    """The batch may still run: only maintenance keeps its file young."""
    provider = make(grace_ms=600_000, maintenance_ms=900_000)
    version = history(provider, 1, 1)[1]
    staged = Path(provider.stage(2, "0" * 15 + "1"))
    for minutes, stays in ((11, True), (44, True), (46, False)):
        os.utime(staged, 2 * (time.time() - 60 * minutes,))
        provider.collect(version)
        assert staged.exists() == stays


def test_damaged_candidates_only_delay(make: MakeProvider, clock: Clock) -> None:
    provider = make(grace_ms=60_000)
    version = history(provider, 1, 1)[1]
    orphan = provider.directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    provider.collect(version)
    (provider.checkpoint / "millpond/gc/0.json").write_bytes(b"rubbish")
    clock.offset_ms = 61_000
    provider.collect(version)
    assert orphan.exists()
    clock.offset_ms = 130_000
    provider.collect(version)
    assert not orphan.exists()


def test_a_publisher_slower_than_the_grace_period_takes_its_manifest_back(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, sweeper = make(), make()
    first = history(provider, 1, 1)[1]
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    plain = LocalStorage.put_bytes

    def late(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key.endswith("2.manifest"):
            sweeper.open(1)
            sweeper.collect(first)  # grace 0: takes the SST that no manifest names yet
        plain(self, key, data, if_absent=if_absent)

    monkeypatch.setattr(LocalStorage, "put_bytes", late)
    with pytest.raises(CallError, match="were collected before") as caught:
        provider.publish(directory, files)
    assert "gc.graceMs" in caught.value.hint
    monkeypatch.undo()
    assert provider.stored(".manifest") == ["1.manifest"]
    assert make().open(2) == provider.state
    assert provider.publish(directory, files)["new_files"] == 1


def test_a_sweeper_that_is_held_up_before_it_deletes_harms_no_snapshot(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper looks for manifests for the last time.

    Then somebody publishes a manifest. Then the sweeper deletes what this manifest names.
    """
    provider, sweeper = make(), make()
    first = history(provider, 1, 1)[1]
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    sweeper.open(1)
    uploaded, deleting, published = threading.Event(), threading.Event(), threading.Event()
    plain_put, plain_delete = LocalStorage.put_bytes, LocalStorage.delete

    def put(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key.endswith("2.manifest"):
            uploaded.set()
            assert deleting.wait(30)
        plain_put(self, key, data, if_absent=if_absent)

    def delete(self: LocalStorage, keys: Iterable[str]) -> None:
        wanted = list(keys)
        if any(key.endswith(".sst") for key in wanted):
            deleting.set()
            assert published.wait(30)
        plain_delete(self, wanted)

    monkeypatch.setattr(LocalStorage, "put_bytes", put)
    monkeypatch.setattr(LocalStorage, "delete", delete)

    def sweep() -> None:
        assert uploaded.wait(30)
        sweeper.collect(first)  # grace 0: takes the SST that no manifest names yet

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        with pytest.raises(CallError, match="were collected before"):
            provider.publish(directory, files)
    finally:
        published.set()
        thread.join(30)
    monkeypatch.undo()
    assert provider.stored(".manifest") == ["1.manifest"]
    assert make().open(2) == provider.state
    assert provider.publish(directory, files)["new_files"] == 1
    assert not list((provider.directory.parents[2] / "millpond" / "gc").glob("*condemned*"))


def orphan_of(provider: Provider) -> Path:
    orphan = provider.directory / "sst" / ("0" * 32 + ".sst")
    orphan.write_bytes(b"x")
    return orphan


def test_an_announcement_of_a_killed_sweep_is_removed_by_the_storages_clock(
    make: MakeProvider, clock: Clock
) -> None:
    provider = make()
    version = history(provider, 1, 1)[1]
    storage = LocalStorage(str(provider.directory.parents[2]))
    notice = announcements.announce(storage, 0, ["state/0/0/sst/x.sst"])
    clock.offset_ms = 2 * announcements.ABANDONED_MS  # the agent's own clock jumped
    orphan_of(provider)
    provider.collect(version)
    assert announcements.announced(storage, 0).condemned == {"state/0/0/sst/x.sst"}
    old_s = time.time() - announcements.ABANDONED_MS / 1000 - 10
    os.utime(provider.checkpoint / notice, (old_s, old_s))
    orphan_of(provider)
    provider.collect(version)
    assert announcements.announced(storage, 0).condemned == frozenset()


def test_a_snapshot_of_an_erased_version_is_taken_back(make: MakeProvider) -> None:
    """An executor has not noticed that its query ended, and that a key was erased."""
    provider = make()
    version = history(provider, 2, 1)[2]
    storage = LocalStorage(str(provider.directory.parents[2]))
    files = provider.stored(".manifest"), provider.stored(".sst")
    version = provider.commit()
    announcements.announce_erasure(storage, 0, version.version)
    with pytest.raises(CallError, match="a key was erased from version 3"):
        provider.snapshot()
    assert (provider.stored(".manifest"), provider.stored(".sst")) == files
    # A run that began after the erasure knows it from format.json, and publishes nothing.
    stored = decode_format(storage.read(layout.FORMAT_KEY))
    storage.put_bytes(layout.FORMAT_KEY, encode_format(stored.with_erased(0, version.version)))
    with pytest.raises(CallError, match="a key was erased from version 3"):
        provider.snapshot()
    provider.commit()
    provider.snapshot()
    assert provider.stored(".manifest")[-1] == "4.manifest"
    assert announcements.announced(storage, 0).erased_version == version.version
    (notice,) = provider.checkpoint.glob("millpond/gc/0.erased-*.json")
    old_s = time.time() - announcements.ERASED_MS / 1000 - 10
    os.utime(notice, (old_s, old_s))
    orphan_of(provider)
    provider.collect(version)
    assert announcements.announced(storage, 0).erased_version == 0


def test_a_sweep_that_was_taken_for_a_killed_one_deletes_nothing(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make()
    version = history(provider, 1, 1)[1]
    orphan = orphan_of(provider)
    plain = LocalStorage.put_bytes

    def held_up(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        plain(self, key, data, if_absent=if_absent)
        if "condemned" in key:
            self.delete([key])  # a sweep that began much later did this

    monkeypatch.setattr(LocalStorage, "put_bytes", held_up)
    provider.collect(version)
    assert orphan.exists()
    monkeypatch.undo()
    provider.collect(version)
    assert not orphan.exists()


@pytest.mark.parametrize("spark_format", [1, 2])
def test_an_announcement_of_a_killed_sweep_holds_up_no_snapshot(
    make: MakeProvider, spark_format: int
) -> None:
    """Somebody killed the sweep after it saw that a manifest names the SST.

    It had not withdrawn its announcement yet.
    """
    provider = make(spark_format=spark_format)
    history(provider, 2, 1)
    storage = LocalStorage(str(provider.checkpoint))
    (sst,) = provider.stored(".sst")
    announcements.announce(storage, 0, [f"state/0/0/{sst}"])
    answer = provider.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (2, 0)
    newest = provider.stored(".manifest")[-1]
    assert sst not in {named.key for named in decode_manifest(provider.read_stored(newest)).ssts}
    provider.commit()
    answer = provider.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (1, 2)
    assert (
        make(spark_format=spark_format).open(3, provider.id if spark_format == 2 else None)
        == provider.state
    )
