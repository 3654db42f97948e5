"""The call `open`, where files are damaged, missing, foreign or from the future."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable

import pytest

from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import decode_format
from millpond.format.manifest import decode_manifest
from tests.agent_driver import CallError, Provider
from tests.unit.agent.histories import snapshots_at

MakeProvider = Callable[..., Provider]


@pytest.mark.parametrize("damage", ["truncated", "bit", "gone", "sst gone", "sst short"])
def test_a_damaged_snapshot_is_passed_over_for_an_older_one(
    make: MakeProvider, damage: str
) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    path = provider.directory / "4.manifest"
    data = path.read_bytes()
    newest = max(decode_manifest(data).ssts, key=lambda s: s.local_name)
    sst = provider.directory / newest.key
    match damage:
        case "truncated":
            path.write_bytes(data[:-10])
        case "bit":
            path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
        case "gone":
            path.unlink()
        case "sst gone":
            sst.unlink()
        case _:
            content = sst.read_bytes()
            sst.unlink()
            sst.write_bytes(content[:-1])
    reader = make()
    assert reader.open(5) == provider.state
    assert reader.snapshot_version == 2 and len(reader.plan["changelogs"]) == 3


def test_a_manifest_the_shim_excludes_is_not_used(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    reader = make()
    assert reader.open(5, excluded=["4.manifest"]) == provider.state
    assert reader.snapshot_version == 2
    assert reader.open(5, excluded=["4.manifest", "2.manifest"]) == provider.state
    assert reader.plan["db"] is None


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (errno.ENOSPC, ErrorKind.LOCAL_DISK_FULL),
        (errno.EIO, ErrorKind.STORAGE_UNAVAILABLE),
        (errno.ENOENT, ErrorKind.LOCAL_FILES_LOST),
    ],
)
def test_trouble_with_the_local_disk_is_no_damage_of_a_snapshot(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch, trouble: int, kind: ErrorKind
) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    reader = make()
    plain = os.link

    def failing(source: str, target: str) -> None:
        if trouble == errno.ENOENT:  # a cleaner of temporary files took the directory
            shutil.rmtree(os.path.dirname(target))
            plain(source, target)
        raise OSError(trouble, os.strerror(trouble))

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(CallError) as caught:
        reader.open(5)
    assert caught.value.kind is kind
    monkeypatch.undo()
    assert reader.open(5) == provider.state
    assert reader.snapshot_version == 4


def test_verify_checksums_finds_an_altered_sst(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    newest = max(
        decode_manifest((provider.directory / "4.manifest").read_bytes()).ssts,
        key=lambda s: s.local_name,
    )
    sst = provider.directory / newest.key
    content = sst.read_bytes()
    sst.unlink()
    sst.write_bytes(content[:-1] + b"!")
    reader = make(options={"restore.verifyChecksums": "true"})
    assert reader.open(5) == provider.state
    assert reader.snapshot_version == 2


def test_no_way_past_a_damaged_snapshot_names_the_cause(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    for name in ("1.changelog", "2.changelog", "3.changelog", "4.changelog", "2.manifest"):
        (provider.directory / name).unlink()
    assert make().open(5) == provider.state
    (provider.directory / "4.manifest").write_bytes(b"rubbish")
    with pytest.raises(
        CallError, match=r"4\.changelog is needed for version 5.*4\.manifest is unusable"
    ) as caught:
        make().open(5)
    assert caught.value.kind is ErrorKind.MANIFEST_DAMAGED


@pytest.mark.parametrize("made", [0, 3])
def test_a_version_that_nobody_made(make: MakeProvider, made: int) -> None:
    """Spark committed a batch that a foreachBatch function did not read. No file was lost."""
    provider = make()
    provider.open(0)
    for _ in range(made):
        provider.commit()
    with pytest.raises(CallError) as caught:
        make().open(made + 1)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING
    assert caught.value.message.endswith(f"the newest version here is {made}")
    assert f"left batch {made} out without reading it" in caught.value.hint


def test_a_missing_changelog_is_an_error_that_names_file_and_store(make: MakeProvider) -> None:
    provider = make(partition=3)
    snapshots_at(provider, 2, until=5)
    (provider.directory / "4.changelog").unlink()
    with pytest.raises(
        CallError, match=r"store 0/3: 4\.changelog is needed for version 5"
    ) as caught:
        make(partition=3).open(5)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING
    assert make(partition=3).open(3) == provider.state[:3]


@pytest.mark.parametrize("damage", ["empty", "truncated", "magic", "header"])
def test_a_changelog_with_a_damaged_header_is_an_error(make: MakeProvider, damage: str) -> None:
    provider = make()
    snapshots_at(provider, until=3)
    path = provider.directory / "2.changelog"
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "truncated": data[:50],
            "magic": b"XXXX" + data[4:],
            "header": data[:60] + b"~" + data[61:],
        }[damage]
    )
    with pytest.raises(CallError, match=r"2\.changelog") as caught:
        make().open(3)
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED


def test_a_changelog_of_another_store_or_version_is_an_error(make: MakeProvider) -> None:
    provider, other = make(), make(partition=1)
    snapshots_at(provider, until=3)
    snapshots_at(other, until=3)
    shutil.copy(other.directory / "2.changelog", provider.directory / "2.changelog")
    with pytest.raises(CallError, match="belongs to store 0/1") as caught:
        make().open(3)
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED
    shutil.copy(provider.directory / "1.changelog", provider.directory / "2.changelog")
    with pytest.raises(CallError, match="says that it is version 1") as caught:
        make().open(3)
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED


def test_a_newer_format_is_refused(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, until=1)
    path = provider.checkpoint / layout.FORMAT_KEY
    data = path.read_bytes()
    path.write_bytes(data.replace(b"format 1 ", b"format 2 ", 1))
    with pytest.raises(CallError) as caught:
        make().open(1)
    assert caught.value.kind is ErrorKind.FORMAT_TOO_NEW
    path.write_bytes(data[:-3])
    with pytest.raises(CallError) as caught:
        make().open(1)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_a_lost_format_file_is_written_anew_from_the_state(make: MakeProvider) -> None:
    provider = make(options={"maxParallelism": "16"})
    snapshots_at(provider, until=2)
    (provider.checkpoint / layout.FORMAT_KEY).unlink()
    reader = make()
    assert reader.open(2) == provider.state
    assert reader.plan["max_parallelism"] == 16
    assert (
        decode_format((provider.checkpoint / layout.FORMAT_KEY).read_bytes()).max_parallelism == 16
    )


@pytest.mark.parametrize(
    "name", ["1.delta", "1.zip", "3.snapshot", "1_1b4e28ba-2fa1-11d2-883f-0016d3cca427.zip"]
)
@pytest.mark.parametrize("version", [0, 1])
def test_a_checkpoint_of_sparks_own_providers_is_refused(
    make: MakeProvider, name: str, version: int
) -> None:
    provider = make()
    provider.directory.mkdir(parents=True)
    (provider.directory / name).write_bytes(b"PK")
    with pytest.raises(CallError, match="another state store provider") as caught:
        provider.open(version)
    assert caught.value.kind is ErrorKind.FOREIGN_CHECKPOINT
    assert not (provider.checkpoint / "millpond").exists()


def test_a_changelog_of_sparks_rocksdb_provider_is_refused(make: MakeProvider) -> None:
    provider = make()
    provider.directory.mkdir(parents=True)
    (provider.directory / "1.changelog").write_bytes(b"\x00\x02v1LZ4Block")
    with pytest.raises(CallError) as caught:
        provider.open(1)
    assert caught.value.kind is ErrorKind.FOREIGN_CHECKPOINT


def test_an_id_that_spark_made_is_refused(make: MakeProvider) -> None:
    with pytest.raises(CallError) as caught:
        make(spark_format=2).open(1, "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    assert caught.value.kind is ErrorKind.FOREIGN_CHECKPOINT
