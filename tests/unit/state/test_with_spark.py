"""Reads of state whose tasks a session of Spark would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import millpond
from integration.depth import quick_first
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import decode_format, encode_format
from millpond.store.files import StoreFiles
from tests.checkpoints import CheckpointBuilder
from tests.join_checkpoints import ROWS, JoinBuilder
from tests.refusals import refused
from tests.row_checkpoints import HashedBuilder, ManyPartitions


class Session:
    """What Millpond uses of a Spark session. A test runs the tasks."""

    def __init__(self) -> None:
        self._run: Callable[[Iterator[Any]], Iterator[Any]]
        self.tasks = range(0)

    def createDataFrame(self, table: Any) -> SimpleNamespace:
        return SimpleNamespace(schema=table.schema)

    def range(self, start: int, end: int, step: int, tasks: int) -> Session:
        self.tasks = range(start, end, step)
        assert tasks == len(self.tasks)
        return self

    def mapInArrow(
        self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any
    ) -> Session:
        assert isinstance(schema, pa.Schema)
        self._run = cloudpickle.loads(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
        return self

    def rows(self, task: int) -> list[Any]:
        """Run a task, as an executor does."""
        batches = self._run(iter([pa.RecordBatch.from_pydict({"id": [task]})]))
        return [row for batch in batches for row in batch.to_pylist()]

    def all_rows(self) -> list[Any]:
        return [row for task in self.tasks for row in self.rows(task)]


def read(path: Any, **chosen: Any) -> Session:
    session = millpond.read_state(path, spark=Session(), **chosen)
    assert isinstance(session, Session)
    return session


def _places(tmp_path: Path, partitions: int, spark_format: int, form: str) -> Path:
    root = tmp_path / f"query-{partitions}"
    ManyPartitions(root, partitions=partitions, spark_format=spark_format).build(2, (1,))
    if form == "checkpoint":
        return root
    savepoint.create(root, tmp_path / f"saved-{partitions}", format=form)
    return tmp_path / f"saved-{partitions}"


@pytest.mark.parametrize(
    ("spark_format", "form"),
    quick_first([(2, "checkpoint"), (1, "native"), (2, "canonical"), (1, "checkpoint")], 3),
)
def test_a_task_asks_for_its_own_partition(
    tmp_path: Path, asked: Counter[str], spark_format: int, form: str
) -> None:
    """Each task planned all stores of the query."""
    counts = []
    for partitions in (4, 40):
        place = _places(tmp_path, partitions, spark_format, form)
        session = read(place, keys={"k": 7}, raw=True)
        assert len(session.tasks) == partitions
        asked.clear()
        session.rows(3)
        counts.append(+asked)
    assert counts[0] == counts[1]
    assert counts[0].total() < 20


@pytest.mark.parametrize("form", ["checkpoint", "native", "canonical"])
def test_the_same_rows(tmp_path: Path, form: str) -> None:
    place = _places(tmp_path, 4, 2, form)
    chosen: list[dict[str, Any]] = [{}, {"raw": True}, {"keys": [{"k": 99}, {"k": 6}, {"k": 7}]}]
    if form == "checkpoint":
        chosen.append({"batch": 0})
    for more in chosen:
        expected = millpond.read_state(place, **more).to_pylist()
        assert expected and read(place, **more).all_rows() == expected


def test_a_joins_own_names(tmp_path: Path) -> None:
    built = JoinBuilder(tmp_path / "query", partitions=4).build(3, ())
    assert isinstance(built, JoinBuilder)
    wanted = {"id": built._number(built.stores()[0], 1)}
    session = read(built.root, store=ROWS, keys=wanted)
    assert (
        session.all_rows() == millpond.read_state(built.root, store=ROWS, keys=wanted).to_pylist()
    )
    assert session.all_rows()


def test_of_another_erasure(tmp_path: Path) -> None:
    """A task refuses what is being erased, and reads what was."""
    built = HashedBuilder(tmp_path / "query", spark_format=2).build(snapshots=())
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved)
    k = min(row["key"]["k"] for row in millpond.read_state(saved).to_pylist())
    sessions = [read(place) for place in (built.root, saved)]
    _mark(built, True)
    for task in range(2):
        refused(ErrorKind.ERASE_UNFINISHED, sessions[0].rows, task)
    _mark(built, False)
    millpond.erase([built.root, saved], key={"k": k})
    for place, session in zip((built.root, saved), sessions, strict=True):
        rows = session.all_rows()
        assert rows == millpond.read_state(place).to_pylist()
        assert rows and k not in [row["key"]["k"] for row in rows]


def test_an_erasure_that_comes_while_a_task_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("checkpoint", "native"):
        place = _places(tmp_path / form, 4, 2, form)
        session = read(place)
        refresh = StoreFiles.refresh

        def erasing(self: Any, place: Path = place, refresh: Any = refresh) -> Any:
            journal = place / layout.ERASE_JOURNAL_KEY
            journal.parent.mkdir(exist_ok=True)
            journal.write_bytes(b"of another")
            return refresh(self)

        with monkeypatch.context() as patch:
            patch.setattr("millpond.store.files.StoreFiles.refresh", erasing)
            refused(ErrorKind.ERASE_UNFINISHED, session.rows, 0)


def _mark(built: CheckpointBuilder, erasing: bool) -> None:
    value = decode_format(built.storage.read(layout.FORMAT_KEY), erasing=True)
    built.storage.put_bytes(layout.FORMAT_KEY, encode_format(value, erasing=erasing))


def test_what_is_gone_is_told_as_by_a_look_at_the_query(tmp_path: Path) -> None:
    """The query has gone on, and removed the batch; or a file is lost."""
    built = HashedBuilder(tmp_path / "query", spark_format=2).build(6, (3, 5))
    session = read(built.root, batch=1)
    for store in built.stores():
        for info in list(built.storage.list(layout.store_prefix(store))):
            if info.key.rpartition("/")[2][:2] in ("1_", "2_", "3_") and not (
                info.key.endswith(".manifest")
            ):
                built.storage.delete([info.key])
    refused(ErrorKind.VERSION_EXPIRED, session.rows, 1)
    session = read(built.root)
    (last,) = [i.key for i in built.storage.list("state/0/1/") if "/6_" in i.key]
    built.storage.delete([last])
    told = refused(ErrorKind.CHANGELOG_MISSING, session.rows, 1)
    assert "Batch 4 is the newest that is whole" in told.hint
