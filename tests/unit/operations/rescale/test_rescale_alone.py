"""A rescale while another command or the query works on the same Spark checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.format import layout, spark_names
from millpond.model.ids import VersionId
from millpond.model.key_groups import KeyGroups
from millpond.operations import rescale as package
from millpond.operations.inspect import verify
from millpond.operations.rescale import RescaleReport, rescale, undo
from millpond.query.rescaling import read_journal
from millpond.query.whole import check_whole
from millpond.spark import commands, heartbeats
from millpond.spark.metadata import logged_batches
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.erase_scenes import unheld
from tests.refusals import refused
from tests.rescale_scenes import beat
from tests.row_checkpoints import HashedBuilder


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path / "it", partitions=4, groups=KeyGroups(48, 12)).build()


class _Meanwhile(LocalStorage):
    """Calls a function once, before the object `key` is put."""

    def __init__(self, root: str, key: str, then: Callable[[], object]) -> None:
        super().__init__(root, fsync=False)
        self._key, self._then = key, then

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if key == self._key:
            self._key = ""
            self._then()
        super().put_bytes(key, data, if_absent=if_absent)


@pytest.mark.parametrize("key", ["offsets/6", "commits/6"])
@pytest.mark.parametrize("other", ["undo", "the same", "another number"])
def test_a_rescale_at_work_is_no_interrupted_one(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch, key: str, other: str
) -> None:
    """Its journal says what it is about to write. It was taken for that of a killed one."""
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    told: list[MillpondError] = []

    def second() -> None:
        with pytest.raises(MillpondError) as refused:
            if other == "undo":
                undo(built.storage, "it")
            else:
                rescale(built.storage, "it", 8 if other == "the same" else 12)
        told.append(refused.value)

    assert rescale(_Meanwhile(str(built.root), key, second), "it", 8).partitions == 8
    assert [error.kind for error in told] == [ErrorKind.COMMAND_RUNNING]
    assert read_journal(built.storage) is None
    assert logged_batches(built.storage, spark_names.COMMITS_DIR)[-1] == 6


def test_one_that_stood_still_touches_nothing_any_more(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command took back what it had written. It neither goes on nor takes back again."""
    monkeypatch.setattr(commands, "_CHECK_S", 0.0)
    after: list[dict[str, bytes]] = []

    def tree() -> dict[str, bytes]:
        files = (p for p in built.root.rglob("*") if p.is_file())
        return {str(p.relative_to(built.root)): p.read_bytes() for p in files}

    def taken_over() -> None:
        built.storage.delete(info.key for info in list(built.storage.list(layout.RUNNING_PREFIX)))
        assert undo(built.storage, "it")
        assert rescale(built.storage, "it", 12).partitions == 12
        after.append(tree())

    storage = _Meanwhile(str(built.root), "state/0/0/7.manifest", taken_over)
    with pytest.raises(MillpondError) as lost:
        rescale(storage, "it", 8)
    assert lost.value.kind is ErrorKind.COMMAND_RUNNING
    changed = {k for k, v in tree().items() if after[0].get(k) != v}
    # The one write that had begun is the only one that came late.
    assert changed == {"state/0/0/7.manifest"}


class _StandsStill(LocalStorage):
    """Calls a function once, when it has found that the object `key` is not there."""

    def __init__(self, root: str, key: str, then: Callable[[], object]) -> None:
        super().__init__(root, fsync=False)
        self._key, self._then = key, then

    def read(self, key: str) -> bytes:
        try:
            return super().read(key)
        except NotFoundError:
            if key == self._key:
                self._key = ""
                self._then()
            raise


@pytest.mark.parametrize("command", ["undo", "rescale"])
def test_one_that_stood_still_takes_nothing_back(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It takes back a rescale that was killed. The next command has done so, and a rescale of its
    own: some of that one's files have the names of the killed one's.
    """
    monkeypatch.setattr(commands, "_CHECK_S", 0.0)
    after: list[dict[str, bytes]] = []

    def tree() -> dict[str, bytes]:
        files = (p for p in built.root.rglob("*") if p.is_file())
        found = {str(p.relative_to(built.root)): p.read_bytes() for p in files}
        return {k: v for k, v in found.items() if not k.startswith(layout.RUNNING_PREFIX)}

    def killed() -> None:
        raise KeyboardInterrupt

    def taken_over() -> None:
        built.storage.delete(info.key for info in list(built.storage.list(layout.RUNNING_PREFIX)))
        assert undo(built.storage, "it")
        assert rescale(built.storage, "it", 12).partitions == 12
        after.append(tree())

    with pytest.raises(KeyboardInterrupt):
        rescale(_Meanwhile(str(built.root), "commits/6", killed), "it", 8)
    assert read_journal(built.storage) is not None
    storage = _StandsStill(str(built.root), "commits/6", taken_over)
    with pytest.raises(MillpondError) as lost:
        undo(storage, "it") if command == "undo" else rescale(storage, "it", 8)
    assert lost.value.kind is ErrorKind.COMMAND_RUNNING
    assert tree() == after[0]


def test_a_query_that_ran_on_past_the_number(built: CheckpointBuilder) -> None:
    """Spark has deleted its entry of that number, so nothing is in the way of another one."""
    seen: list[dict[str, bytes]] = []

    def tree() -> dict[str, bytes]:
        files = (p for p in built.root.rglob("*") if p.is_file())
        found = {str(p.relative_to(built.root)): p.read_bytes() for p in files}
        return {k: v for k, v in found.items() if not k.startswith(layout.RUNNING_PREFIX)}

    def run_on(_: RescaleReport) -> None:
        built.spark_logs(9)
        for store in built.stores():
            built.changelogs(store, 9)
        for batch in range(7):
            for log in (spark_names.OFFSETS_DIR, spark_names.COMMITS_DIR):
                (built.root / log / str(batch)).unlink(missing_ok=True)
        seen.append(tree())

    with pytest.raises(MillpondError) as refused:
        rescale(built.storage, "it", 8, announce=run_on)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING
    assert tree() == seen[0]


@pytest.mark.parametrize("spark_format", [1, 2])
@pytest.mark.parametrize("partitions", [8, 5])
def test_a_batch_that_spark_commits_while_it_plans_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, spark_format: int
) -> None:
    """A run came and went between two readings of Spark's logs. The state was put together without
    the run's batch, and the sources went on after it. No command told of that.
    """
    groups = KeyGroups(48, 12)
    built = HashedBuilder(tmp_path / "it", partitions=4, groups=groups, spark_format=spark_format)
    built.build()
    rows = _content(built)
    names = [
        layout.changelog_key(store, VersionId(6, version_id(store, 6)), spark_format)
        for store in built.stores()
    ]
    batch = {key: built.storage.read(key) for key in (*names, "offsets/5", "commits/5")}
    before: dict[str, bytes] = {}

    def meanwhile(*arguments: Any) -> Any:
        read = check_whole(*arguments)
        built.show(batch)
        before.update(unheld(built))
        return read

    with monkeypatch.context() as patched:
        patched.setattr(package, "check_whole", meanwhile)
        built.storage.delete(batch)
        error = refused(ErrorKind.QUERY_RUNNING, rescale, built.storage, "it", partitions)
        assert "batch 5" in str(error)
        assert unheld(built) == before, "nothing has changed"
        # Beside a query that runs one may still ask what it would take.
        built.storage.delete(batch)
        planned = rescale(built.storage, "it", partitions, dry_run=True)
    report = rescale(built.storage, "it", partitions)
    assert (report.batch, report.way) == (planned.batch, planned.way) and report.batch == 6
    if partitions == 8:
        (manifest,) = built.root.glob("state/0/0/7*.manifest")
        assert Path(names[0]).name.encode() in manifest.read_bytes()
    assert _content(built) == rows and verify(built.storage, "it").problems == []


def _content(built: CheckpointBuilder) -> list[tuple[int, str]]:
    rows = millpond.read_state(built.root).to_pylist()
    return sorted((row["key"]["k"], row["value"]["n"]) for row in rows)


def test_a_query_that_starts_while_it_plans(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no batch to do yet. A rescale that moves no row did not look for it again."""
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.05)
    before = tree(built.root)

    def started(report: object) -> None:
        beat(built, 1, "elsewhere")

    with pytest.raises(MillpondError) as e:
        rescale(built.storage, "it", 8, announce=started)
    assert e.value.kind is ErrorKind.QUERY_RUNNING
    after = tree(built.root)
    del after["millpond/running/run-1.json"]
    assert after == before


@pytest.mark.parametrize(
    ("partitions", "written"), [(8, "state/0/0/7.manifest"), (5, "state/0/0/7.changelog")]
)
def test_a_query_that_starts_after_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, written: str
) -> None:
    """It read its logs before the rescale's entry was there. The rescale went on beside it.

    In real-time mode a batch has its entry when it ends: files of its state are not touched.
    """
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.05)
    groups = KeyGroups(48, 12)
    built = HashedBuilder(tmp_path / "it", partitions=4, groups=groups)
    built.build()
    before = tree(built.root)
    theirs = {"millpond/running/run-1.json", written}

    def started() -> None:
        beat(built, 1, "elsewhere")
        built.storage.put_bytes(written, b"of its first batch")

    with pytest.raises(MillpondError) as e:
        rescale(_Meanwhile(str(built.root), "offsets/6", started), "it", partitions)
    assert e.value.kind is ErrorKind.QUERY_RUNNING
    after = tree(built.root)
    assert after[written] == b"of its first batch"
    assert {k: v for k, v in after.items() if k not in theirs} == before
