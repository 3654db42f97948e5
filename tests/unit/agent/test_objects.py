"""The agent on a storage without local paths.

These tests check which requests it makes, and what it does when one fails.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millpond.agent import context as contexts
from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.storage import MemoryStorage, StorageSettings
from millpond.storage.split import SplitStorage
from millpond.storage.usage import Usage
from millpond.testing.faults import Fault, FaultyStorage, fail_when
from millpond.testing.storage_contract import StorageContract
from tests.agent_driver import CallError, Driver, Provider, attempts_of_one_batch
from tests.objects import Objects

OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{"spark.sql.shuffle.partitions":"4"}}\n{}'
OPERATOR = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":4}]}'
)


class TestFaultyStorageWithoutFaults(StorageContract):
    @pytest.fixture
    def storage(self) -> FaultyStorage:
        return FaultyStorage(MemoryStorage(), lambda _: None)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path)


def opened(provider: Provider, source: Provider) -> tuple[str, ...]:
    return provider.open(source.version, source.id if provider.spark_format == 2 else None)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_requests(objects: Objects, spark_format: int) -> None:
    writer = objects.provider(spark_format)
    writer.open(0)
    # In format 1 the commit log does not tell which operators there are. So the first commit of
    # each operator writes that down.
    assert objects.requests(writer.commit) == {"put_file": 1} | (
        {"put_bytes": 1} if spark_format == 1 else {}
    )
    for _ in range(2):
        assert objects.requests(writer.commit) == {"put_file": 1}, "a commit is one PUT"
    writer.snapshot()
    for _ in range(4):
        writer.commit()
    reader = objects.provider(spark_format)
    made = objects.requests(lambda: opened(reader, writer))
    assert reader.state == writer.state
    # A restore gets four changelogs and an SST. It reads the manifest and format.json. Spark's logs
    # are on the same storage here.
    spark = {"list": 3, "read": 2}
    assert made == {"get_to_file": 5, "read": 2 + spark["read"], "list": spark["list"]}
    assert reader.snapshot_version == 3


@pytest.mark.parametrize("spark_format", [1, 2])
def test_following_is_a_get_for_each_changelog(objects: Objects, spark_format: int) -> None:
    writer = objects.provider(spark_format)
    writer.open(0)
    ids = [writer.commit().id for _ in range(3)]
    writer.snapshot()
    ids += [writer.commit().id for _ in range(5)]
    named = ids[-1] if spark_format == 2 else None
    reader = objects.provider(spark_format)
    seen: list[tuple[str, ...]] = []
    made = objects.requests(lambda: seen.append(reader.followed(7, 8, named)))
    assert (made, seen.pop()) == ({"get_to_file": 1}, tuple(ids[7:]))
    # Beyond the snapshot that the newest header names: the header before it goes on.
    made = objects.requests(lambda: seen.append(reader.followed(1, 8, named)))
    assert (made, seen.pop()) == ({"get_to_file": 7}, tuple(ids[1:]))


def test_two_hundred_partitions_list_nothing(tmp_path: Path) -> None:
    """A commit is one PUT for each store, and a restore GETs files by name.

    Each batch runs on an executor that remembers nothing.
    """
    state = FaultyStorage(MemoryStorage(), lambda _: None)
    split = SplitStorage(MemoryStorage(), state)
    ids = [""] * 200
    for version in range(3):
        service = AgentService(opener=lambda uri, settings: split)
        before = Counter(state.counts)
        for partition in range(200):
            local = tmp_path / f"{version}-{partition}"
            store = Provider(
                service,
                tmp_path / "ckpt",
                local,
                partition=partition,
                spark_format=2,
                partitions_hint=200,
            )
            assert len(store.open(version, ids[partition] or None)) == version
            ids[partition] = store.commit().id
        made = dict(state.counts - before)
        born = (
            {"put_bytes": 2} if version == 0 else {"get_to_file": 200 * version}
        )  # the changelogs back to version 1
        assert made == {"put_file": 200, "read": 2, **born}  # format.json, and the owner


@pytest.mark.parametrize("version", [0, 1])
def test_a_store_that_was_closed_meanwhile_gets_no_folder(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The call of a killed task goes on for a while. Nobody would delete what it brings."""
    provider = objects.provider()
    provider.open(0)
    at = provider.commit() if version else None
    handle = provider.service.handle

    def closed(method: str, request: str) -> str:
        shutil.rmtree(provider.local_dir)
        return handle(method, request)

    monkeypatch.setattr(provider.service, "handle", closed)
    with pytest.raises(CallError) as caught:
        provider.open(version, at.id if at is not None else None)
    assert caught.value.kind is ErrorKind.LOCAL_FILES_LOST
    assert not provider.local_dir.exists()


def test_spark_s_logs_are_read_once_per_run(objects: Objects) -> None:
    objects.memory.put_bytes("offsets/0", OFFSETS)
    objects.memory.put_bytes("state/0/_metadata/metadata", OPERATOR)
    first = objects.provider()
    first.open(0)
    second = Provider(
        first.service, first.checkpoint, objects.tmp_path / "second", partition=1, spark_format=2
    )
    assert objects.requests(lambda: second.open(0)) == {}, (
        "the second store of an executor asks for nothing"
    )
    second.storage = objects.memory
    second.commit()
    assert objects.requests(lambda: second.open(1, second.id)) == {"get_to_file": 1}
    other_run = Provider(
        first.service, first.checkpoint, objects.tmp_path / "3", spark_format=2, run_id="another"
    )
    assert objects.requests(lambda: other_run.open(0))["list"] > 0


def test_a_batch_after_one_that_closed_its_stores_asks_for_state_alone(objects: Objects) -> None:
    """With Spark's `unloadOnCommit` each batch closes its stores, and the next one opens them."""
    objects.memory.put_bytes("offsets/0", OFFSETS)
    objects.memory.put_bytes("state/0/_metadata/metadata", OPERATOR)
    query = objects.provider()
    query.open(0)
    query.commit()
    query.call("close")
    assert objects.requests(lambda: opened(query, query)) == {"get_to_file": 1}
    assert objects.requests(query.commit) == {"put_file": 1}


def test_of_queries_without_stores_some_are_known(tmp_path: Path) -> None:
    """Those whose stores were closed last: each has a connection."""
    begun: list[str] = []

    def opener(uri: str, settings: StorageSettings) -> MemoryStorage:
        begun.append(uri.rpartition("/")[2])
        return MemoryStorage()

    service = AgentService(opener=opener)

    def use(name: str) -> None:
        query = Provider(service, tmp_path / name, tmp_path / f"local-{name}", run_id=name)
        query.open(0)
        query.call("close")

    for name in ("a", "b", "a", "c", "d", "a", "e", "a", "b"):
        use(name)
    assert begun == ["a", "b", "c", "d", "e", "b"]


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("lost", ["manifest", "sst", "changelog at the snapshot"])
def test_what_is_not_there_is_looked_for_in_a_listing(
    objects: Objects, spark_format: int, lost: str
) -> None:
    writer = objects.provider(spark_format)
    writer.open(0)
    for _ in range(2):
        for _ in range(2):
            writer.commit()
        writer.snapshot()
    if lost == "changelog at the snapshot":
        (name,) = [n for n in writer.stored(".changelog") if n.startswith("4")]
        writer.replace_stored(name, None)
    else:
        writer.commit()
        names = writer.stored(".manifest" if lost == "manifest" else ".sst")
        (name,) = (
            [n for n in names if n.startswith("4")] if lost == "manifest" else [newest_sst(writer)]
        )
        writer.replace_stored(name, None)
    reader = objects.provider(spark_format)
    assert opened(reader, writer) == writer.state
    assert reader.snapshot_version == (4 if lost.startswith("changelog") else 2)


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("asks", [False, True])
def test_a_damaged_changelog_is_passed_over_if_a_newer_snapshot_is_listed(
    objects: Objects, spark_format: int, asks: bool
) -> None:
    """The newest changelog was written before that snapshot, and does not name it. Damage behind
    the header is seen by the shim, which asks for a listing.
    """
    writer = objects.provider(spark_format)
    writer.open(0)
    for _ in range(3):
        writer.commit()
    writer.snapshot()
    state = writer.state
    reader = objects.provider(spark_format)
    assert opened(reader, writer) == state
    assert reader.snapshot_version == 0 and not reader.plan["listed"]
    if not asks:
        other, name = (
            next(n for n in writer.stored(".changelog") if n.startswith(v)) for v in ("1", "2")
        )
        writer.replace_stored(name, writer.read_stored(other))
    named = writer.id if spark_format == 2 else None
    assert reader.open(3, named, listed=asks) == state
    assert reader.snapshot_version == 3 and reader.plan["listed"]


def newest_sst(provider: Provider) -> str:
    """Return the SST that only the snapshot of version 4 names."""
    from millpond.format.manifest import decode_manifest

    manifests = [
        decode_manifest(provider.read_stored(name)) for name in provider.stored(".manifest")
    ]
    named = {m.version: {sst.key for sst in m.ssts} for m in manifests}
    (key,) = named[4] - named[2]
    return key


@pytest.mark.parametrize("spark_format", [1, 2])
def test_nothing_that_would_do_is_there(objects: Objects, spark_format: int) -> None:
    writer = objects.provider(spark_format)
    writer.open(0)
    for _ in range(3):
        writer.commit()
    (name,) = [n for n in writer.stored(".changelog") if n.startswith("2")]
    writer.replace_stored(name, None)
    with pytest.raises(CallError) as caught:
        opened(objects.provider(spark_format), writer)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING and name in caught.value.message


def test_a_lost_answer_of_a_commit(objects: Objects) -> None:
    writer = objects.provider()
    writer.open(0)
    staged = writer.stage(1, "0123456789abcdef")
    objects.fault = fail_when(lambda op: op.is_put, Fault.LOST_ANSWER)
    with pytest.raises(CallError) as caught:
        writer.call("publish_changelog", version=1, id="0123456789abcdef", staged=staged)
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    objects.fault = lambda _: None
    for _ in range(2):
        answer = writer.call("publish_changelog", version=1, id="0123456789abcdef", staged=staged)
        assert answer["path"] == staged
    assert writer.stored() == ["1_0123456789abcdef.changelog"]


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_late_attempt_does_not_replace_what_is_committed(
    objects: Objects, spark_format: int
) -> None:
    first, late = objects.provider(spark_format), objects.provider(spark_format)
    kept = attempts_of_one_batch(first, late)
    Driver(first.checkpoint, spark_format, first.storage).record(kept)
    if spark_format == 1:
        with pytest.raises(CallError, match="another attempt of batch 0 is committed") as caught:
            late.commit()
        assert caught.value.kind is ErrorKind.VERSION_COMMITTED
    else:
        late.commit()
    reader = objects.provider(spark_format)
    assert reader.open(1, kept.id if spark_format == 2 else None) == (kept.id,)


def test_a_commit_that_did_not_arrive_is_no_commit(objects: Objects) -> None:
    writer = objects.provider()
    writer.open(0)
    for fault in (Fault.UNAVAILABLE, Fault.DENIED, Fault.FULL):
        objects.fault = fail_when(lambda op: op.is_put, fault)
        with pytest.raises(CallError):
            writer.commit()
    assert writer.stored() == []


def test_no_secret_reaches_a_log_or_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hadoop = {
        "fs.s3a.access.key": "OPEN-SESAME",
        "fs.s3a.secret.key": "OPEN-SESAME",
        "fs.s3a.session.token": "OPEN-SESAME",
    }
    seen: list[StorageSettings] = []

    def opener(uri: str, settings: StorageSettings) -> Any:
        seen.append(settings)
        if len(seen) == 2:
            raise RuntimeError(f"{settings}")
        return MemoryStorage()

    service = AgentService(opener=opener)
    answers = []
    for number, method in enumerate(
        ("open", "open", "publish_changelog", "collect", "nonsense", "change_feed", "close")
    ):
        store = {
            "root": f"s3a://bucket/{number}/state",
            "operator": 0,
            "partition": 0,
            "name": "default",
            "run_id": "run",
            "local_dir": str(tmp_path),
            "checkpoint_format": 1,
            "partitions_hint": 4,
            "options": {} if number % 2 else {"storage.deadlineMs": "5000"},
            "retain_versions": 2,
            "min_deltas_for_snapshot": 2,
            "maintenance_interval_ms": 0,
            "hadoop": hadoop if number < 6 else {"fs.s3a.secret.key": 1, "x": "OPEN-SESAME"},
        }
        answers.append(
            service.handle(
                method, json.dumps({"store": store, "version": 0, "generation": 1, "id": None})
            )
        )
    assert "ok" in json.loads(answers[0]) and json.loads(answers[1])["error"]["kind"] == "INTERNAL"
    keys = seen[0].s3.credentials
    assert (
        keys is not None
        and keys.secret_key is not None
        and keys.secret_key.reveal() == "OPEN-SESAME"
    )
    assert "OPEN-SESAME" not in caplog.text + "".join(answers) + repr(vars(service._contexts))


def test_a_checkpoint_in_two_places(tmp_path: Path) -> None:
    spark, state = MemoryStorage(), MemoryStorage()
    spark.put_bytes("offsets/0", OFFSETS)
    service = AgentService(opener=lambda uri, settings: SplitStorage(spark, state))
    provider = Provider(
        service,
        tmp_path / "ckpt",
        tmp_path / "local",
        spark_format=2,
        storage=state,
        partitions_hint=None,
    )
    provider.open(0)
    assert provider.plan["partitions"] == 4
    provider.commit()
    provider.snapshot()
    assert [info.key for info in spark.list("")] == ["offsets/0"]
    assert {info.key.split("/")[0] for info in state.list("")} == {"millpond", "state"}


def test_answers_tell_what_the_storage_was_asked(tmp_path: Path) -> None:
    class Counting(MemoryStorage):
        """A storage with counters, as that of S3 has them."""

        def __init__(self) -> None:
            super().__init__()
            self.usage = Usage()

        def put_file(
            self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
        ) -> None:
            super().put_file(key, local_path, if_absent=if_absent, link=link)
            self.usage.sent("PutObject", 100)

    state = Counting()
    service = AgentService(opener=lambda uri, settings: SplitStorage(MemoryStorage(), state))
    provider = Provider(service, tmp_path / "ckpt", tmp_path / "local", storage=state)
    provider.open(0)
    assert "storage" not in provider.plan
    answer = provider.call(
        "publish_changelog", version=1, id="0" * 16, staged=provider.stage(1, "0" * 16)
    )
    assert answer["storage"] == {"put_requests": 1, "sent_bytes": 100}
    assert "storage" not in provider.call("close")


def test_a_storage_that_does_not_answer_holds_up_its_own_query_only(tmp_path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    def opener(uri: str, settings: StorageSettings) -> MemoryStorage:
        if uri.endswith("slow"):
            asked.set()
            assert answer.wait(30)
        return MemoryStorage()

    service = AgentService(opener=opener)
    slow = Provider(service, tmp_path / "slow", tmp_path / "local-slow")
    fast = Provider(service, tmp_path / "fast", tmp_path / "local-fast")
    thread = threading.Thread(target=slow.open, args=(0,))
    thread.start()
    assert asked.wait(30)
    fast.open(0)
    fast.call("close")
    answer.set()
    thread.join()
    assert slow.plan["lineage_base"] == 0 and slow.plan["lineage"] == [""]


def test_threads_of_ended_queries_do_not_pile_up(tmp_path: Path) -> None:
    """A query that is stopped closes its stores. Of a few the agent keeps the connection."""
    service = AgentService(opener=lambda uri, settings: MemoryStorage())
    met = threading.Barrier(3)
    made: list[set[threading.Thread]] = []
    for n in range(10):
        provider = Provider(
            service, tmp_path / str(n), tmp_path / f"local-{n}", storage=MemoryStorage()
        )
        provider.open(0)
        before = set(threading.enumerate())
        (context,) = service._contexts._stores.values()
        context.checkpoint.parallel.run([lambda: met.wait(10)] * 3)
        made.append(set(threading.enumerate()) - before)
        provider.call("close")
        del context
    assert all(len(threads) == 3 for threads in made)
    for thread in (thread for threads in made[: -contexts._UNUSED] for thread in threads):
        thread.join(10)
        assert not thread.is_alive()
    assert not service._contexts._stores
