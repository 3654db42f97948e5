"""The calls of the protocol, with real files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond._version import __version__
from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import decode_format, encode_format
from millpond.model.ids import new_id
from millpond.storage import StorageSettings
from tests.agent_driver import CallError, Driver, Provider, attempts_of_one_batch, call

MakeProvider = Callable[..., Provider]


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
        assert reader.id == version.id


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
    assert (rewriter.plan["lineage_base"], rewriter.plan["lineage"]) == (3, [""])
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
    name_operator(writer, "stateStoreSave")
    writer.open(0)
    writer.commit()
    id, why = new_id(), "a key of key group 3 is in partition 0 of 4"
    staged = writer.stage(2, id, misplaced=why)
    writer.call("publish_changelog", version=2, id=id, staged=staged)
    reader = make()
    reader.open(2)
    assert reader.plan["misplaced"] == why
    assert reader.plan["partition_key"] == {"kind": "whole"}
    reader.open(1)
    assert reader.plan["misplaced"] == ""


def name_operator(provider: Provider, name: str) -> Path:
    """Write Spark's metadata of the operator. Return its folder."""
    folder = provider.checkpoint / "state" / "0" / "_metadata"
    folder.mkdir(parents=True, exist_ok=True)
    info = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": []}
    (folder / "metadata").write_text("v1\n" + json.dumps(info))
    return folder


def test_rows_in_slot_0_stay_there_when_their_keys_become_known(make: MakeProvider) -> None:
    """They would be looked for elsewhere. A later version of Millpond may know more operators."""
    writer = make()
    name_operator(writer, "operatorOfTheFuture")
    writer.open(0)
    writer.commit()
    writer.snapshot()
    rule = writer.plan["partition_key"]
    assert rule["kind"] == "unknown"
    name_operator(writer, "stateStoreSave")
    for version in (0, 1):
        reader = make()
        reader.open(version)
        assert reader.plan["partition_key"] == ({"kind": "whole"} if version == 0 else rule)


@pytest.mark.parametrize("named", [False, True])
def test_rows_that_lie_by_keys_are_refused_when_nobody_knows_the_keys(
    make: MakeProvider, named: bool
) -> None:
    writer = make()
    folder = name_operator(writer, "stateStoreSave")
    writer.open(0)
    writer.commit()
    if named:
        name_operator(writer, "operatorOfTheFuture")
    else:
        (folder / "metadata").unlink()
    with pytest.raises(CallError) as caught:
        make().open(1)
    assert caught.value.kind is (ErrorKind.FORMAT_TOO_NEW if named else ErrorKind.FORMAT_DAMAGED)
    assert ("operatorOfTheFuture" if named else "metadata of operator 0") in caught.value.message
    # Nothing is lost: whoever puts the file back has the state again.
    name_operator(writer, "stateStoreSave")
    assert make().open(1) == writer.state


def test_a_version_without_id_in_format_2_is_refused(make: MakeProvider) -> None:
    provider = make(spark_format=2)
    provider.open(0)
    provider.commit()
    with pytest.raises(CallError, match="without an id") as caught:
        provider.open(1, None)
    assert caught.value.kind is ErrorKind.CHECKPOINT_FORMAT_CHANGED


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


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_late_attempt_does_not_replace_what_is_committed(
    make: MakeProvider, spark_format: int
) -> None:
    first, late = make(spark_format=spark_format), make(spark_format=spark_format)
    driver = Driver(first.checkpoint, spark_format)
    kept = attempts_of_one_batch(first, late)
    driver.record(kept)
    driver.record(first.commit())
    (first.checkpoint / "commits/0").unlink()  # Spark removes old entries of its log
    if spark_format == 1:
        with pytest.raises(CallError, match="another attempt of batch 0 is committed") as caught:
            late.commit()
        assert caught.value.kind is ErrorKind.VERSION_COMMITTED
    else:
        late.commit()
    assert make(spark_format=spark_format).open(1, kept.id) == (kept.id,)


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
    published = provider.call("publish_changelog", version=1, id=id, staged=staged)["path"]
    assert os.path.getsize(published) > 0


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
