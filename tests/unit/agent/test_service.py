"""The calls of the protocol, with real files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond._version import __version__
from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import CheckpointFormat, decode_format, encode_format
from millpond.format.manifest import decode_manifest
from millpond.model.ids import VersionId, new_id
from millpond.storage import StorageSettings
from tests.agent_driver import CallError, Provider, call
from tests.checkpoints import state_schema

MakeProvider = Callable[..., Provider]


@pytest.fixture
def service() -> AgentService:
    return AgentService()


@pytest.fixture
def make(service: AgentService, tmp_path: Path) -> MakeProvider:
    counter = iter(range(1000))

    def provider(**arguments: Any) -> Provider:
        return Provider(
            service, tmp_path / "ckpt", tmp_path / f"local-{next(counter)}", **arguments
        )

    return provider


def offsets(checkpoint: Path, batch: int, partitions: int | None, *, commit: bool = True) -> None:
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": str(partitions)}
    for directory in ("offsets", "commits"):
        (checkpoint / directory).mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{metadata}\n{{"x":1}}')
    if commit:
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


# ---- the envelope


def test_ping_tells_pid_and_version(service: AgentService) -> None:
    assert call(service, "ping") == {"pid": os.getpid(), "version": __version__}


def test_ping_accepts_an_empty_request(service: AgentService) -> None:
    assert json.loads(service.handle("ping", ""))["ok"]["version"] == __version__


@pytest.mark.parametrize(
    ("method", "request_text"),
    [
        ("nonsense", "{}"),
        ("open", "{"),
        ("open", "[]"),
        ("open", "{}"),
        ("open", '{"store": {"root": 1}}'),
    ],
)
def test_a_bad_request_is_an_error_answer(
    service: AgentService, method: str, request_text: str
) -> None:
    error = json.loads(service.handle(method, request_text))["error"]
    assert error["kind"] == "INVALID_ARGUMENT" and "bad request" in error["message"]


def test_an_unexpected_exception_becomes_internal(tmp_path: Path) -> None:
    def opener(uri: str, settings: StorageSettings) -> Any:
        raise RuntimeError("boom")

    provider = Provider(AgentService(opener=opener), tmp_path / "ckpt", tmp_path / "local")
    with pytest.raises(CallError, match="RuntimeError: boom") as caught:
        provider.open(0)
    assert caught.value.kind is ErrorKind.INTERNAL


def test_an_unknown_option_names_the_nearest(make: MakeProvider) -> None:
    with pytest.raises(CallError, match="maxParallelism") as caught:
        make(options={"maxParalelism": "8"}).open(0)
    assert caught.value.kind is ErrorKind.UNKNOWN_OPTION


def test_close_forgets_and_the_store_can_be_used_again(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    assert provider.call("close") == {}
    assert provider.commit().version == 1


# ---- open


def test_version_0_is_empty_and_creates_what_spark_needs(make: MakeProvider) -> None:
    provider = make()
    assert provider.open(0) == ()
    plan = provider.plan
    assert (plan["partitions"], plan["max_parallelism"], plan["base"]) == (4, 512, 4)
    assert plan["db"] is None and plan["changelogs"] == [] and plan["lineage"] == [""]
    assert Path(plan["staging_dir"]) == provider.directory and provider.directory.is_dir()
    stored = decode_format((provider.checkpoint / layout.FORMAT_KEY).read_bytes())
    assert (stored.max_parallelism, stored.base) == (512, 4)


def test_backend_is_the_sessions_else_what_the_checkpoint_remembers(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    assert provider.plan["backend"] == "rocksdb"
    path = provider.checkpoint / layout.FORMAT_KEY
    path.write_bytes(encode_format(replace(decode_format(path.read_bytes()), backend="heap")))
    provider.open(0)
    assert provider.plan["backend"] == "heap"
    provider.options["backend"] = "rocksdb"
    provider.open(0)
    assert provider.plan["backend"] == "rocksdb"


def test_named_store_has_its_own_directory(make: MakeProvider) -> None:
    provider = make(name="left-keyToNumValues", partition=2)
    provider.open(0)
    assert provider.directory == provider.checkpoint / "state/0/2/left-keyToNumValues"
    provider.commit()
    assert provider.stored() == ["1.changelog"]


@pytest.mark.parametrize("spark_format", [1, 2])
def test_commits_are_restored_by_another_executor(make: MakeProvider, spark_format: int) -> None:
    writer = make(spark_format=spark_format)
    writer.open(0)
    versions = [writer.commit() for _ in range(5)]
    for version in versions:
        reader = make(spark_format=spark_format)
        state = reader.open(version.version, version.id if spark_format == 2 else None)
        assert state == tuple(v.id for v in versions[: version.version])
        assert reader.plan["id"] == version.id


def test_file_names_carry_ids_in_format_2_only(make: MakeProvider) -> None:
    for spark_format, operator in ((1, 0), (2, 1)):
        provider = make(spark_format=spark_format, operator=operator)
        provider.open(0)
        version = provider.commit()
        provider.snapshot()
        prefix = "1" if spark_format == 1 else f"1_{version.id}"
        assert [n for n in provider.stored() if not n.startswith("sst/")] == [
            f"{prefix}.changelog",
            f"{prefix}.manifest",
        ]


def test_of_two_attempts_the_one_asked_for_is_read(make: MakeProvider) -> None:
    a, b = make(spark_format=2), make(spark_format=2)
    a.open(0)
    first = a.commit()
    b.open(1, first.id)
    second_a, second_b = a.commit(), b.commit()
    a.snapshot()
    third_b = b.commit()
    reader = make(spark_format=2)
    assert reader.open(2, second_a.id) == (first.id, second_a.id)
    assert reader.open(2, second_b.id) == (first.id, second_b.id)
    assert reader.open(3, third_b.id) == (first.id, second_b.id, third_b.id)


def test_in_format_1_the_later_attempt_replaces_and_its_snapshot_is_not_mixed_in(
    make: MakeProvider,
) -> None:
    a, b = make(), make()
    a.open(0)
    first = a.commit()
    b.open(1)
    second_a = a.commit()
    a.snapshot()
    second_b = b.commit()
    third_b = b.commit()
    assert make().open(3) == (first.id, second_b.id, third_b.id)
    assert make().open(2) == (first.id, second_b.id)
    assert second_a.id not in make().open(3)


def test_load_empty_is_an_empty_store_at_that_version(make: MakeProvider) -> None:
    writer = make()
    writer.open(0)
    for _ in range(3):
        writer.commit()
    rewriter = make()
    assert rewriter.open(3, load_empty=True) == ()
    assert (rewriter.plan["lineage_base"], rewriter.plan["lineage"], rewriter.plan["id"]) == (
        3,
        [""],
        "",
    )
    id = new_id()
    rewriter.call(
        "publish_changelog", version=4, id=id, staged=rewriter.stage(4, id, empty_base=True)
    )
    assert make().open(4) == (id,)
    assert make().open(3) == writer.state


def test_a_store_with_a_key_in_the_wrong_place_is_known_as_one_when_it_is_opened_again(
    make: MakeProvider,
) -> None:
    writer = make()
    writer.open(0)
    writer.commit()
    id = new_id()
    staged = writer.stage(2, id, misplaced="placed by another key")
    writer.call("publish_changelog", version=2, id=id, staged=staged)
    reader = make()
    reader.open(2)
    assert reader.plan["misplaced"] == "placed by another key"
    reader.open(1)
    assert reader.plan["misplaced"] == ""


def test_a_version_without_id_in_format_2_is_refused(make: MakeProvider) -> None:
    provider = make(spark_format=2)
    provider.open(0)
    provider.commit()
    with pytest.raises(CallError, match="without an id") as caught:
        provider.open(1, None)
    assert caught.value.kind is ErrorKind.CHECKPOINT_FORMAT_CHANGED


# ---- snapshots


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
    assert reader.plan["snapshot_version"] == 4 and [
        c["version"] for c in reader.plan["changelogs"]
    ] == [5]
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
        scalable=False,
        unscalable_reason="why",
    )
    manifest = decode_manifest((provider.directory / "1.manifest").read_bytes())
    assert (manifest.key_groups.scalable, manifest.key_groups.reason) == (False, "why")
    assert manifest.slots == ((128, 256),)


# ---- damage


def snapshots_at(provider: Provider, *versions: int, until: int) -> None:
    provider.open(0)
    for version in range(1, until + 1):
        provider.commit()
        if version in versions:
            provider.snapshot()


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
    assert reader.plan["snapshot_version"] == 2 and len(reader.plan["changelogs"]) == 3


def test_a_manifest_the_shim_excludes_is_not_used(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, 2, 4, until=5)
    reader = make()
    assert reader.open(5, excluded=["4.manifest"]) == provider.state
    assert reader.plan["snapshot_version"] == 2
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
    assert reader.plan["snapshot_version"] == 4


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
    assert reader.plan["snapshot_version"] == 2


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


# ---- key groups and partitions


def test_max_parallelism_is_fixed_at_birth(make: MakeProvider) -> None:
    provider = make(options={"maxParallelism": "24"})
    provider.open(0)
    assert (provider.plan["max_parallelism"], provider.plan["base"]) == (24, 12)
    other = make(partition=1)
    other.open(0)
    assert other.plan["max_parallelism"] == 24
    with pytest.raises(CallError, match="is 24") as caught:
        make(options={"maxParallelism": "48"}).open(0)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_MISMATCH


def test_max_parallelism_must_be_a_multiple(make: MakeProvider) -> None:
    with pytest.raises(CallError, match="8 or 12") as caught:
        make(options={"maxParallelism": "10"}).open(0)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID


def test_many_executors_agree_on_the_format(make: MakeProvider) -> None:
    providers = [make(partition=p, partitions_hint=16, run_id=f"run-{p}") for p in range(16)]
    barrier = threading.Barrier(len(providers))
    errors: list[BaseException] = []

    def run(provider: Provider) -> None:
        try:
            barrier.wait()
            provider.service = AgentService()
            provider.open(0)
            provider.commit()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(p,)) for p in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {p.plan["max_parallelism"] for p in providers} == {2048}
    assert all(
        make(partition=p, partitions_hint=16).open(1) == providers[p].state for p in range(16)
    )


def test_the_offset_log_rules_over_the_session(make: MakeProvider) -> None:
    provider = make(partitions_hint=200)
    offsets(provider.checkpoint, 0, 8, commit=False)
    provider.open(0)
    assert provider.plan["partitions"] == 8 and provider.plan["base"] == 8


def test_partitions_unknown(make: MakeProvider) -> None:
    with pytest.raises(CallError) as caught:
        make(partitions_hint=None).open(0)
    assert caught.value.kind is ErrorKind.PARTITIONS_UNKNOWN


def test_without_an_offset_log_the_state_tells_the_partitions(make: MakeProvider) -> None:
    writer = make(partitions_hint=4)
    writer.open(0)
    writer.commit()
    reader = make(partitions_hint=None)
    reader.open(1)
    assert reader.plan["partitions"] == 4


@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize(("changed", "partition"), [(4, 1), (16, 1), (16, 11)])
def test_partitions_changed_by_hand(
    make: MakeProvider, changed: int, partition: int, with_snapshot: bool
) -> None:
    checkpoint = make().checkpoint
    offsets(checkpoint, 0, 8)
    for p in range(8):
        writer = make(partition=p)
        writer.open(0)
        writer.commit()
        if with_snapshot:
            writer.snapshot()
    offsets(checkpoint, 0, changed)
    with pytest.raises(CallError, match=f"from 8 to {changed}") as caught:
        make(partition=partition).open(1)
    assert caught.value.kind is ErrorKind.PARTITIONS_CHANGED
    assert "Put 8 back" in caught.value.hint


def test_a_past_version_keeps_the_partitions_of_its_batch(make: MakeProvider) -> None:
    writer = make()
    for batch in range(3):
        offsets(writer.checkpoint, batch, 8, commit=False)
    writer.open(0)
    for _ in range(3):
        writer.commit()
    for batch in range(3):
        offsets(writer.checkpoint, batch, 8)
    offsets(writer.checkpoint, 3, 4)  # as a rescale records it
    reader = make()
    assert len(reader.open(2)) == 2
    assert reader.plan["partitions"] == 8
    with pytest.raises(CallError) as caught:
        make().open(4)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING


@pytest.mark.parametrize(
    ("name", "columns", "minds"),
    [
        ("globalLimit", None, False),
        ("stateStoreSave", [], False),
        ("stateStoreSave", ["k"], True),
        ("sessionWindowStateStoreSaveExec", ["session_start"], False),
    ],
)
def test_an_operator_that_lives_in_partition_0_does_not_mind(
    make: MakeProvider, name: str, columns: list[str] | None, minds: bool
) -> None:
    writer = make()
    metadata = writer.checkpoint / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 8}
    metadata.write_text(
        "v1\n"
        + json.dumps(
            {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": [store]}
        )
    )
    if columns is not None:
        schema = writer.checkpoint / "state/0/0/_metadata/schema"
        schema.parent.mkdir(parents=True)
        schema.write_bytes(state_schema(columns, ["v"]))
    offsets(writer.checkpoint, 0, 8)
    writer.open(0)
    assert writer.plan["operator_name"] == name
    writer.commit()
    offsets(writer.checkpoint, 0, 4)
    reader = make()
    if minds:
        with pytest.raises(CallError, match="PARTITIONS_CHANGED"):
            reader.open(1)
    else:
        assert reader.open(1) == writer.state and reader.plan["partitions"] == 4


def test_partition_key_comes_from_the_operator(make: MakeProvider) -> None:
    provider = make()
    metadata = provider.checkpoint / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 4}
    metadata.write_text(
        "v1\n"
        + json.dumps(
            {
                "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
                "stateStoreInfo": [store],
            }
        )
    )
    spec = "NoPrefixKeyStateEncoderSpec"
    keyed = provider.call("partition_key", column_family="default", key_columns=["a"], spec=spec)
    keyless = provider.call("partition_key", column_family="default", key_columns=[], spec=spec)
    assert keyed == {"rule": {"kind": "whole"}} and keyless == {"rule": {"kind": "none"}}


def test_a_format_file_that_contradicts_the_state_is_refused(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, until=1)
    other = CheckpointFormat(max_parallelism=8, base=4, created_by="test", created_ms=0)
    (provider.checkpoint / layout.FORMAT_KEY).write_bytes(encode_format(other))
    with pytest.raises(CallError) as caught:
        make().open(1)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


# ---- publish_changelog


def test_publishing_twice_is_settled_by_looking(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    id = new_id()
    staged = provider.stage(1, id)
    first = provider.call("publish_changelog", version=1, id=id, staged=staged)
    assert provider.call("publish_changelog", version=1, id=id, staged=staged) == first
    with pytest.raises(CallError, match="by another attempt") as caught:
        provider.call("publish_changelog", version=1, id=new_id(), staged=staged)
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    with pytest.raises(CallError, match="was not published"):
        provider.call("publish_changelog", version=2, id=id, staged=staged)


@pytest.mark.parametrize(
    "staged", ["/etc/passwd", "{dir}/../.staging-" + "0" * 32, "{dir}/1.changelog"]
)
def test_only_a_staging_file_of_the_store_is_published(make: MakeProvider, staged: str) -> None:
    provider = make()
    provider.open(0)
    with pytest.raises(CallError, match="no staging file") as caught:
        provider.call(
            "publish_changelog",
            version=1,
            id=new_id(),
            staged=staged.format(dir=provider.directory),
        )
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_staging_files_are_invisible(make: MakeProvider) -> None:
    provider = make()
    provider.open(0)
    provider.commit()
    provider.stage(2, new_id())
    assert make().open(1) == provider.state
    with pytest.raises(CallError) as caught:
        make().open(2)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_checkpoint_says_so(make: MakeProvider) -> None:
    provider = make()
    provider.checkpoint.mkdir()
    provider.checkpoint.chmod(0o500)
    with pytest.raises(CallError) as caught:
        provider.open(0)
    assert caught.value.kind is ErrorKind.STORAGE_DENIED


def test_a_full_device_says_so(make: MakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = make()
    provider.open(0)
    id = new_id()
    staged = provider.stage(1, id)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", no_space)
    with pytest.raises(CallError) as caught:
        provider.call("publish_changelog", version=1, id=id, staged=staged)
    assert caught.value.kind is ErrorKind.STORAGE_FULL
    monkeypatch.undo()
    assert provider.stored(".changelog") == []
    assert provider.call("publish_changelog", version=1, id=id, staged=staged)["bytes"] > 0


def test_without_fsync_nothing_is_synced(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: calls.append(name))
    provider = make(options={"commit.fsync": "false"})
    provider.open(0)
    provider.commit()
    assert calls == []
    synced = make(partition=1)
    synced.open(0)
    calls.clear()
    synced.commit()
    assert calls == ["fdatasync", "fsync"]
