"""The call `snapshot`, with real files: what it uploads, reuses and refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format.manifest import decode_manifest
from millpond.model.ids import VersionId
from millpond.storage import LocalStorage
from tests.agent_driver import CallError, Provider

MakeProvider = Callable[..., Provider]


def test_snapshot_is_incremental_and_shortens_the_chain(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    for _ in range(2):
        provider.commit()
    first = provider.snapshot()
    assert (first["manifest"], first["new_files"], first["reused_files"]) == ("2.manifest", 1, 0)
    assert first["new_bytes"] > 0 and first["reused_bytes"] == 0
    for _ in range(2):
        provider.commit()
    second = provider.snapshot()
    assert (second["new_files"], second["reused_files"], second["reused_bytes"]) == (
        1,
        1,
        first["new_bytes"],
    )
    provider.commit()
    reader = make()
    assert reader.open(5) == provider.state
    assert reader.snapshot_version == 4 and [c["version"] for c in reader.plan["changelogs"]] == [5]
    assert reader.plan["db"]["manifest"] == "4.manifest" and reader.plan["db"]["keys"] == 4
    assert reader.plan["db"]["column_families"] == [{"name": "default", "id": 0, "kind": "point"}]
    assert reader.plan["restore_bytes"] > first["new_bytes"]


def test_a_restored_executor_reuses_what_is_stored(make: MakeProvider) -> None:
    writer = make()
    writer.open(0)
    writer.commit()
    writer.snapshot()
    heir = make()
    heir.open(1)
    heir.commit()
    answer = heir.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (1, 1)
    manifest = decode_manifest((heir.directory / "2.manifest").read_bytes())
    assert manifest.parent_snapshot is not None and manifest.parent_snapshot.version == 1
    assert make().open(2) == heir.state


def test_compaction_uploads_the_new_file_only(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.snapshot()
    provider.commit()
    answer = provider.snapshot(compact=True)
    assert (answer["new_files"], answer["reused_files"]) == (1, 0)
    assert make().open(2) == provider.state
    assert len(provider.stored(".sst")) == 2


def test_an_sst_whose_manifest_is_gone_is_uploaded_again(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.snapshot()
    (provider.directory / "1.manifest").unlink()
    provider.commit()
    answer = provider.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (2, 0)


def test_an_sst_that_another_attempts_manifest_does_not_name_is_uploaded_again(
    make: MakeProvider,
) -> None:
    a, b = make(), make()
    a.open(0)
    a.commit()
    a.snapshot()
    b.open(0)
    b.commit()
    b.snapshot()  # replaces 1.manifest, which named the SST of `a`
    a.commit()
    assert a.snapshot()["new_files"] == 2


def test_the_same_snapshot_again_is_published_again(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    first = provider.publish(directory, files)
    again = provider.publish(directory, files)
    assert (
        again["manifest"] == first["manifest"]
        and again["reused_files"] == 1
        and again["new_files"] == 0
    )
    assert make().open(1) == provider.state


def test_an_agent_that_was_restarted_goes_on(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.snapshot()
    provider.service = AgentService()
    provider.commit()
    assert provider.snapshot()["reused_files"] == 1
    provider.service = AgentService()
    assert provider.collect(VersionId(2, provider.id)) == {"deleted_files": 0, "deleted_bytes": 0}
    assert make().open(2) == provider.state


@pytest.mark.parametrize("damage", ["missing", "size", "name", "current", "twice"])
def test_a_rocksdb_checkpoint_that_is_not_what_is_said_is_refused(
    make: MakeProvider, damage: str
) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    if damage == "missing":
        (directory / files[0]["name"]).unlink()
    elif damage == "size":
        files[0]["size_bytes"] += 1
    elif damage == "name":
        files[0]["name"] = "../1.sst"
    elif damage == "current":
        (directory / "CURRENT").write_text("../MANIFEST-000005\n")
    else:
        files.append(files[0])
    with pytest.raises(CallError) as caught:
        provider.publish(directory, files)
    assert caught.value.kind in (ErrorKind.INVALID_ARGUMENT, ErrorKind.UNSAFE_PATH)
    assert provider.stored(".manifest") == []


def test_unscalable_is_kept_in_the_manifest(make: MakeProvider) -> None:
    provider = make(partition=1)
    provider.open(0)
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    provider.call(
        "publish_snapshot",
        version=1,
        id=provider.id,
        db_checkpoint=str(directory),
        files=files,
        keys=1,
        column_families=[],
        partitions=provider.plan["partitions"],
        scalable=False,
        unscalable_reason="why",
    )
    manifest = decode_manifest((provider.directory / "1.manifest").read_bytes())
    assert (manifest.key_groups.scalable, manifest.key_groups.reason) == (False, "why")
    assert manifest.slots == ((128, 256),)


def test_a_snapshot_stands_although_the_folder_of_its_load_is_gone(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads may have come while its files were on their way."""
    provider = make()
    provider.open(0)
    provider.commit()
    provider.flush()
    directory, files = provider.rocksdb_checkpoint()
    links = directory.rename(provider.local_dir / directory.name)
    put_file = LocalStorage.put_file

    def slow(storage: LocalStorage, key: str, path: str, **how: bool) -> None:
        put_file(storage, key, path, **how)
        shutil.rmtree(provider.generation_dir)

    monkeypatch.setattr(LocalStorage, "put_file", slow)
    assert provider.publish(links, files)["new_files"] == 1
    assert make().open(1) == provider.state
