"""The state at storage.uri belongs to one Spark checkpoint.

Millpond tells a copy of that so before the copy changes anything.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.operations.rescale import rescale, undo
from millpond.operations.take_over import take_over
from millpond.storage import LocalStorage, MemoryStorage, open_checkpoint
from millpond.storage.owner import claim, read_owner
from millpond.storage.place import place_record
from millpond.storage.same_place import canonical
from millpond.storage.split import SplitStorage
from tests.agent_driver import CallError, Provider, call
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder

Captured = pytest.CaptureFixture[str]


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_one_of_many_gets_it() -> None:
    """Two Spark checkpoints with several executors each ask at one instant."""
    state = MemoryStorage()
    outcomes: dict[str, list[str]] = {"/one": [], "/two": []}
    begin = threading.Barrier(8)

    def executor(root: str) -> None:
        begin.wait()
        try:
            claim(SplitStorage(MemoryStorage(), state), root)
            outcomes[root].append("claimed")
        except MillpondError as e:
            outcomes[root].append(e.kind.value)

    threads = [
        threading.Thread(target=executor, args=(root,)) for root in outcomes for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = read_owner(state)
    assert owner in ("file:/one", "file:/two")
    for root, found in outcomes.items():
        assert found == (["claimed"] if canonical(root) == owner else ["STATE_OWNED"]) * 4


def test_where_the_state_is_in_the_checkpoint_there_is_nothing_to_claim(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "ckpt"))
    claim(storage, str(tmp_path / "ckpt"))
    assert not (tmp_path / "ckpt").exists()


# ---- a query


class Query:
    """A Spark checkpoint with its state below `states`, and executors of its query."""

    def __init__(self, root: Path, states: Path) -> None:
        self.root, self.states, self.runs = root, states, 0

    def executor(self) -> Provider:
        self.runs += 1
        local = self.root.parent / f"local-{self.root.name}-{self.runs}"
        options = {"storage.uri": f"file:{self.states}", "gc.graceMs": 0, "gc.intervalMs": 0}
        provider = Provider(
            AgentService(),
            self.root,
            local,
            spark_format=1,
            options=options,
            run_id=f"{self.root.name}-{self.runs}",
        )
        provider.storage = LocalStorage(str(self.folder))
        return provider

    @property
    def folder(self) -> Path:
        return self.states / "the-query"

    def check_start(self) -> str:
        options = {"storage.uri": f"file:{self.states}"}
        return str(
            call(AgentService(), "check_start", root=f"file:{self.root}/state", options=options)[
                "state"
            ]
        )


@pytest.fixture
def query(tmp_path: Path) -> Query:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/metadata").write_text('{"id":"the-query"}')
    return Query(tmp_path / "ckpt", tmp_path / "states")


def copied(query: Query, name: str = "copy") -> Query:
    shutil.copytree(query.root, query.root.parent / name)
    return Query(query.root.parent / name, query.states)


def test_a_copy_is_refused_before_it_changes_anything(query: Query) -> None:
    query.check_start()
    first = query.executor()
    first.open(0)
    first.commit()
    assert read_owner(LocalStorage(str(query.folder))) == f"file:{query.root}"
    copy = copied(query)
    before = tree(query.folder)
    with pytest.raises(CallError) as caught:
        copy.check_start()
    assert caught.value.kind is ErrorKind.STATE_OWNED
    for part in (f"file:{query.root},", f"file:{copy.root}", str(query.folder)):
        assert part in caught.value.message
    assert "millpond fork" in caught.value.hint and "take-over" in caught.value.hint
    # A driver without an agent asks nothing. Then its executors ask.
    second = copy.executor()
    assert second.open(1) == first.state, "a read harms nobody"
    for change in (second.commit, second.snapshot, lambda: second.call("collect", force=True)):
        with pytest.raises(CallError) as caught:
            change()
        assert caught.value.kind is ErrorKind.STATE_OWNED
    after = {key: data for key, data in tree(query.folder).items() if "/.staging-" not in key}
    assert after == before
    first.commit()
    assert query.executor().open(2) == first.state
    query.check_start()


def test_a_folder_from_before_gets_an_owner_with_its_next_start(query: Query) -> None:
    first = query.executor()
    first.open(0)
    first.commit()
    (query.folder / layout.OWNER_KEY).unlink()
    copy = copied(query)
    query.check_start()
    copy.check_start()
    assert not (query.folder / layout.OWNER_KEY).exists(), "the driver writes nothing down"
    again = query.executor()
    again.open(1)
    again.commit()
    with pytest.raises(CallError):
        copy.check_start()
    assert query.check_start() == f"file:{query.folder}"


def test_another_name_of_the_same_directory(query: Query) -> None:
    query.executor().open(0)
    first = query.executor()
    first.open(0)
    first.commit()
    (query.root.parent / "link").symlink_to(query.root)
    link = Query(query.root.parent / "link", query.states)
    link.check_start()
    again = link.executor()
    again.open(1)
    again.commit()


# ---- commands


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> RowsBuilder:
    root = tmp_path_factory.mktemp("rows") / "ckpt"
    built = RowsBuilder(root, spark_format=2)
    built.build()
    return built


@pytest.fixture
def pair(template: RowsBuilder, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Make a Spark checkpoint with its state elsewhere, and a copy of it.

    Return both, and the folder of their state.
    """
    report = savepoint.fork(template.root, tmp_path / "ckpt", storage_uri=str(tmp_path / "states"))
    shutil.copytree(tmp_path / "ckpt", tmp_path / "copy")
    return tmp_path / "ckpt", tmp_path / "copy", tmp_path / "states" / str(report.query_id)


def test_commands_refuse_a_copy(
    pair: tuple[Path, Path, Path], tmp_path: Path, capsys: Captured
) -> None:
    original, copy, folder = pair
    assert read_owner(LocalStorage(str(folder))) == f"file:{original}", (
        "who restores the state owns it"
    )
    before = tree(folder)
    storage = open_checkpoint(str(copy))
    refused(ErrorKind.STATE_OWNED, rescale, storage, str(copy), 4)
    refused(ErrorKind.STATE_OWNED, rescale, storage, str(copy), 4, dry_run=True)
    refused(ErrorKind.STATE_OWNED, undo, storage, str(copy))
    refused(ErrorKind.STATE_OWNED, millpond.rescale, copy, 4)
    refused(ErrorKind.STATE_OWNED, savepoint.create, copy, tmp_path / "new")
    refused(ErrorKind.STATE_OWNED, savepoint.fork, copy, tmp_path / "new")
    refused(
        ErrorKind.STATE_OWNED,
        millpond.release,
        copy,
        tmp_path / "new",
        provider="rocksdb",
        dry_run=True,
    )
    assert main(["rescale", str(copy), "--partitions", "4"]) == 2
    assert "STATE_OWNED" in capsys.readouterr().err
    assert tree(folder) == before and not (tmp_path / "new").exists()
    assert millpond.read_state(copy).num_rows == millpond.read_state(original).num_rows
    assert main(["checkpoint", "show", str(copy)]) == 0
    savepoint.fork(original, tmp_path / "fork")
    assert millpond.rescale(original, 4).partitions == 4


def test_take_over_what_was_moved(
    pair: tuple[Path, Path, Path], tmp_path: Path, capsys: Captured
) -> None:
    original, copy, folder = pair
    shutil.rmtree(original)
    assert main(["storage", "take-over", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "checkpoint": str(copy),
        "state": str(folder),
        "before": f"file:{original}",
    }
    assert millpond.rescale(copy, 4).partitions == 4
    assert main(["storage", "take-over", str(copy)]) == 0, "a second take-over succeeds too"
    assert f"before      file:{copy}" in capsys.readouterr().out
    (folder / layout.OWNER_KEY).unlink()
    assert (
        take_over(copy).before is None and read_owner(LocalStorage(str(folder))) == f"file:{copy}"
    )


def test_take_over_from_one_that_is_still_there(
    pair: tuple[Path, Path, Path],
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    original, copy, folder = pair
    e = refused(ErrorKind.STATE_OWNED, take_over, copy)
    assert "still there" in str(e) and "--even-if-there" in e.hint and "millpond fork" in e.hint
    beat = original / f"{layout.RUNNING_PREFIX}1.json"
    beat.parent.mkdir()
    beat.write_text(json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 600_000}))
    assert main(["storage", "take-over", str(copy), "--even-if-there"]) == 1
    assert "QUERY_RUNNING" in capsys.readouterr().err
    assert read_owner(LocalStorage(str(folder))) == f"file:{original}"
    beat.unlink()
    assert main(["storage", "take-over", str(copy), "--even-if-there"]) == 0
    refused(ErrorKind.STATE_OWNED, millpond.rescale, original, 4)
    assert millpond.rescale(copy, 4).partitions == 4


@pytest.mark.parametrize("what", ["1", "command-1"])
def test_take_over_from_one_on_which_something_begins_meanwhile(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It began after the look at the old owner, and had looked who owns the state: two wrote to
    one state.
    """
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    original, copy, folder = pair
    record = LocalStorage.put_bytes
    beat = original / f"{layout.RUNNING_PREFIX}{what}.json"

    def begun(storage: LocalStorage, key: str, *more: bytes) -> None:
        if not beat.exists():
            beat.parent.mkdir()
            beat.write_text(json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 600_000}))
        record(storage, key, *more)

    monkeypatch.setattr(LocalStorage, "put_bytes", begun)
    kind = ErrorKind.QUERY_RUNNING if what == "1" else ErrorKind.COMMAND_RUNNING
    refused(kind, take_over, copy, even_if_there=True)
    assert read_owner(LocalStorage(str(folder))) == f"file:{original}"
    beat.unlink()
    monkeypatch.undo()
    assert take_over(copy, even_if_there=True).before == f"file:{original}"


def test_take_over_from_a_place_that_cannot_be_looked_at(pair: tuple[Path, Path, Path]) -> None:
    _, copy, folder = pair
    other = claim_of(folder, "hdfs://nn/ckpt")
    e = refused(ErrorKind.STATE_OWNED, take_over, copy)
    assert other in str(e) and "--even-if-there" in e.hint
    assert take_over(copy, even_if_there=True).before == other


def claim_of(folder: Path, root: str) -> str:
    (folder / layout.OWNER_KEY).unlink()
    claim(SplitStorage(MemoryStorage(), LocalStorage(str(folder))), root)
    return root


def test_there_is_nothing_to_take_over(template: RowsBuilder, tmp_path: Path) -> None:
    refused(ErrorKind.INVALID_ARGUMENT, take_over, template.root)
    refused(ErrorKind.NOT_A_CHECKPOINT, take_over, tmp_path)


def test_a_damaged_owner(pair: tuple[Path, Path, Path]) -> None:
    """Nobody knows who owns the state. So nothing is changed. A take-over fails too."""
    original, _, folder = pair
    (folder / layout.OWNER_KEY).write_bytes(b"rubbish")
    refused(ErrorKind.FORMAT_DAMAGED, millpond.rescale, original, 4)
    (folder / layout.OWNER_KEY).write_bytes(place_record("s3://x/y"))
    refused(ErrorKind.FORMAT_DAMAGED, take_over, original)
    os.unlink(folder / layout.OWNER_KEY)
    assert millpond.rescale(original, 4).partitions == 4
    assert read_owner(LocalStorage(str(folder))) == f"file:{original}"
