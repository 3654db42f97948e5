"""Savepoints of Spark checkpoints that agents write.

One is saved while an agent collects. Agents go on from a restored one, and collect there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import millpond
from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId, VersionId
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale
from millpond.storage import LocalStorage
from millpond.store.collection import pins
from tests.agent_driver import Provider
from tests.checkpoints import PROVIDER, state_schema
from tests.refusals import refused

OPTIONS = {"gc.graceMs": "0", "gc.intervalMs": "0", "commit.fsync": "false"}


def provider(checkpoint: Path, local: Path, spark_format: int) -> Provider:
    return Provider(
        AgentService(),
        checkpoint,
        local,
        spark_format=spark_format,
        partitions_hint=1,
        options=dict(OPTIONS),
    )


def commit_in_spark(checkpoint: Path, batch: int, version: VersionId, spark_format: int) -> None:
    """Write what Spark's driver writes for a batch."""
    storage = LocalStorage(str(checkpoint), fsync=False)
    storage.put_bytes(spark_names.QUERY_METADATA_KEY, b'{"id":"the-query"}')
    conf = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
        "spark.sql.shuffle.partitions": "1",
    }
    offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
    storage.put_bytes(
        spark_names.offsets_key(batch), f"v1\n{json.dumps(offsets)}\n{batch}".encode()
    )
    ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[version.id]]}}
    text = f"v2\n{json.dumps(ids)}" if spark_format == 2 else 'v1\n{"nextBatchWatermarkMs":0}'
    storage.put_bytes(spark_names.commits_key(batch), text.encode())
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
    }
    storage.put_bytes(
        spark_names.operator_metadata_v1_key(0), f"v1\n{json.dumps(operator)}".encode()
    )
    storage.put_bytes(spark_names.state_schema_key(StoreId(0, 0)), state_schema(["k"], ["count"]))


def history(
    checkpoint: Path, local: Path, spark_format: int, until: int, snapshots: set[int]
) -> Provider:
    """Run a query of `until` batches. Return its store."""
    store = provider(checkpoint, local, spark_format)
    store.open(0)
    for number in range(1, until + 1):
        version = store.commit()
        commit_in_spark(checkpoint, number - 1, version, spark_format)
        if number in snapshots:
            store.snapshot()
    return store


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize(
    "snapshots", [set(), {3}, {3, 6}], ids=["no-snapshot", "snapshot", "snapshot-at-the-end"]
)
def test_what_is_restored_goes_on_and_is_collected(
    tmp_path: Path, spark_format: int, snapshots: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    original = history(tmp_path / "a", tmp_path / "local", spark_format, 6, snapshots)
    savepoint.create(tmp_path / "a", tmp_path / "saved")
    savepoint.restore(tmp_path / "saved", tmp_path / "b")
    restored = provider(tmp_path / "b", tmp_path / "local-b", spark_format)
    assert restored.open(6, original.id if spark_format == 2 else None) == original.state
    state = list(original.state)
    with caplog.at_level(logging.WARNING):
        for batch in range(6, 16):
            version = restored.commit()
            state.append(version.id)
            commit_in_spark(tmp_path / "b", batch, version, spark_format)
            if batch % 3 == 0:
                restored.snapshot()
            restored.collect(version)
    assert caplog.records == [], "a collection finds nothing strange in it"
    again = provider(tmp_path / "b", tmp_path / "local-c", spark_format)
    assert again.open(16, restored.id if spark_format == 2 else None) == tuple(state)
    # The collection keeps three versions, and what they need.
    assert min(int(name.split(".")[0].split("_")[0]) for name in restored.stored(".changelog")) > 6
    # The original is unchanged.
    assert provider(tmp_path / "a", tmp_path / "local-d", spark_format).open(
        6, original.id if spark_format == 2 else None
    ) == tuple(state[:6])
    assert savepoint.verify(tmp_path / "saved").files == len(
        savepoint.show(tmp_path / "saved").index.files
    )


@pytest.mark.parametrize("spark_format", [1, 2])
def test_pinned_while_it_is_copied(
    tmp_path: Path, spark_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of `create`, a collection would delete everything that the savepoint needs."""
    store = history(tmp_path / "a", tmp_path / "local", spark_format, 6, {3, 6})
    collected: list[int] = []
    put_file = LocalStorage.put_file

    def collecting(
        self: LocalStorage,
        key: str,
        local_path: str,
        *,
        if_absent: bool = False,
        link: bool = False,
    ) -> None:
        if not collected and ".staging-" in self.root:
            for batch in range(6, 12):
                version = store.commit()
                commit_in_spark(tmp_path / "a", batch, version, spark_format)
                store.snapshot()
                collected.append(store.collect(version)["deleted_files"])
        put_file(self, key, local_path, if_absent=if_absent, link=link)

    monkeypatch.setattr(LocalStorage, "put_file", collecting)
    savepoint.create(tmp_path / "a", tmp_path / "saved", batch=4)
    assert sum(collected) > 0, "a collection deletes files meanwhile"
    monkeypatch.undo()
    savepoint.restore(tmp_path / "saved", tmp_path / "b")
    restored = provider(tmp_path / "b", tmp_path / "local-b", spark_format)
    ids = store.lineage if spark_format == 2 else None
    assert len(restored.open(5, _id_of(tmp_path / "saved") if ids else None)) == 5
    # The pin is released. So the next collection deletes the files.
    assert pins.Pins().read(LocalStorage(str(tmp_path / "a")), now_ms=0) == frozenset()
    version = store.commit()
    commit_in_spark(tmp_path / "a", 12, version, spark_format)
    assert store.collect(version)["deleted_files"] > 0
    with pytest.raises(MillpondError) as caught:
        savepoint.create(tmp_path / "a", tmp_path / "late", batch=4)
    assert caught.value.kind is ErrorKind.VERSION_EXPIRED


@pytest.mark.parametrize("command", [savepoint.create, savepoint.fork])
@pytest.mark.parametrize("spark_format", [1, 2])
def test_what_expires_before_it_is_pinned_is_planned_anew(
    tmp_path: Path,
    spark_format: int,
    command: Callable[[Path, Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query is so fast that retention removes the planned files, six times."""
    store = history(tmp_path / "a", tmp_path / "local", spark_format, 6, {3})
    batches, runs = iter(range(6, 54)), list[str]()
    put_bytes = LocalStorage.put_bytes

    def faster(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key.startswith(layout.PINS_PREFIX) and len(runs) < 6 and key not in runs:
            runs.append(key)
            for number in range(8):
                version = store.commit()
                commit_in_spark(tmp_path / "a", next(batches), version, spark_format)
                if number == 2:
                    store.snapshot()
                store.collect(version)
        put_bytes(self, key, data, if_absent=if_absent)

    monkeypatch.setattr(LocalStorage, "put_bytes", faster)
    command(tmp_path / "a", tmp_path / "made")
    assert len(runs) == 6
    assert (tmp_path / "made/commits/53").exists()


@pytest.mark.parametrize("spark_format", [1, 2])
def test_an_operator_that_is_gone_as_a_whole(tmp_path: Path, spark_format: int) -> None:
    """Spark's commit log lists operators in format 2 only.

    In format 1 the agent writes them down. A command that copies the query does so too.
    """
    history(tmp_path / "a", tmp_path / "local", spark_format, 3, set())
    history(tmp_path / "old", tmp_path / "local-old", spark_format, 3, set())
    record = layout.operator_record_key(0)
    assert (tmp_path / "a" / record).exists() == (spark_format == 1)
    savepoint.create(tmp_path / "a", tmp_path / "saved")
    savepoint.fork(tmp_path / "a", tmp_path / "forked")
    savepoint.restore(tmp_path / "saved", tmp_path / "restored")
    savepoint.restore(tmp_path / "saved", tmp_path / "mapped", map_operators={0: 5})
    for name, operator in (("a", 0), ("forked", 0), ("restored", 0), ("mapped", 5)):
        query, storage = tmp_path / name, LocalStorage(str(tmp_path / name))
        assert verify(storage, name).problems == []
        (query / f"state/{operator}").rename(tmp_path / f"of-{name}")
        (query / "state/7/_metadata").mkdir(parents=True)
        (query / "state/7/_metadata/metadata").write_text(
            (tmp_path / f"of-{name}/_metadata/metadata").read_text()
        )
        assert f"state/{operator}/_metadata" in {
            problem.file for problem in verify(storage, name).problems
        }
        refused(ErrorKind.FORMAT_DAMAGED, savepoint.create, query, tmp_path / "x")
        refused(ErrorKind.FORMAT_DAMAGED, rescale, storage, name, 4)
    if spark_format == 1:  # an earlier version of Millpond wrote no such record
        (tmp_path / "old" / record).unlink()
    assert verify(LocalStorage(str(tmp_path / "old")), "old").problems == []


def _id_of(saved: Path) -> str:
    (store,) = savepoint.show(saved).index.image.operators[0].stores
    return store.id


def test_saved_again_and_again_while_batches_are_committed(tmp_path: Path) -> None:
    """Each savepoint is whole, and holds a committed batch with the state that belongs to it."""
    store = history(tmp_path / "a", tmp_path / "local", 2, 2, set())
    ids = [id for id in store.lineage if id]
    done = threading.Event()

    def commit() -> None:
        for batch in range(2, 60):
            version = store.commit()
            ids.append(version.id)
            commit_in_spark(tmp_path / "a", batch, version, 2)
            if batch % 4 == 0:
                store.snapshot()
            store.collect(version)
        done.set()

    thread = threading.Thread(target=commit)
    thread.start()
    number = 0
    while number < 8 or not done.is_set():
        savepoint.create(tmp_path / "a", tmp_path / f"saved-{number}")
        number += 1
    thread.join()
    for n in range(number):
        savepoint.restore(tmp_path / f"saved-{n}", tmp_path / f"b-{n}")
        batch = savepoint.show(tmp_path / f"saved-{n}").index.image.batch
        opened = provider(tmp_path / f"b-{n}", tmp_path / f"local-{n}", 2).open(
            batch + 1, ids[batch]
        )
        assert opened == tuple(ids[: batch + 1])


# ---- stop_with_savepoint -------------------------------------------------------------------------


class Query:
    """A query as `stop_with_savepoint` sees it.

    `store` commits a batch after somebody has asked for its status a number of times. The query
    tells of it when somebody asks for its progress for the second time since.
    """

    def __init__(
        self,
        store: Provider,
        checkpoint: Path,
        *,
        active: bool = True,
        commits_after: int | None = 3,
    ) -> None:
        self.store, self.checkpoint, self.isActive, self.stopped = store, checkpoint, active, False
        self._asked, self._commits_after = 0, commits_after
        self._untold = [store.version - 1]

    @property
    def status(self) -> dict[str, object]:
        self._asked += 1
        if self._asked == self._commits_after:
            batch = self.store.version
            commit_in_spark(self.checkpoint, batch, self.store.commit(), 1)
            self._untold += [batch - 1, batch]
        return {"isTriggerActive": self._commits_after is not None}

    @property
    def lastProgress(self) -> SimpleNamespace:
        told = self._untold.pop(0) if len(self._untold) > 1 else self._untold[0]
        return SimpleNamespace(batchId=told)

    def stop(self) -> None:
        self.isActive, self.stopped = False, True


@pytest.mark.parametrize(
    ("active", "commits_after", "wait_s", "batch"),
    [(True, 3, 60, 3), (True, None, 60, 2), (False, 1, 60, 2), (True, 10**9, 0.05, 2)],
    ids=["in-a-batch", "between-batches", "ended", "a-batch-that-takes-too-long"],
)
def test_stop_with_savepoint(
    tmp_path: Path, active: bool, commits_after: int | None, wait_s: float, batch: int
) -> None:
    store = history(tmp_path / "a", tmp_path / "local", 1, 3, set())
    query = Query(store, tmp_path / "a", active=active, commits_after=commits_after)
    report = millpond.stop_with_savepoint(
        query, tmp_path / "saved", checkpoint=tmp_path / "a", wait_s=wait_s
    )
    assert (query.stopped, report.batch) == (True, batch)
    assert query.lastProgress.batchId == batch  # or its listeners never hear of it
    assert savepoint.show(tmp_path / "saved").index.image.batch == batch


def test_a_query_is_not_stopped_for_nothing(tmp_path: Path) -> None:
    store = history(tmp_path / "a", tmp_path / "local", 1, 3, set())
    query = Query(store, tmp_path / "a")
    for options, kind in (
        ({"savepoint": tmp_path / "a"}, ErrorKind.INVALID_ARGUMENT),
        ({"savepoint": tmp_path / "local"}, ErrorKind.TARGET_NOT_EMPTY),
        ({"savepoint": tmp_path / "x", "wait_s": -1}, ErrorKind.INVALID_ARGUMENT),
        ({"savepoint": tmp_path / "x", "checkpoint": None}, ErrorKind.UNSUPPORTED),
    ):
        with pytest.raises(MillpondError) as caught:
            millpond.stop_with_savepoint(query, **{"checkpoint": tmp_path / "a", **options})  # type: ignore[arg-type]
        assert caught.value.kind is kind and not query.stopped
