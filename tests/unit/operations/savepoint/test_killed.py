"""Kills with `kill -9` of commands that spread their work over processes, and of these processes.

The tests kill `edit` too. After a kill the target is whole, or absent. The source is untouched, and
no process goes on. The next command removes what the killed one left. `test_savepoint` kills
commands that run alone.

`MILLPOND_KILLS=100` does that number of kills of each kind.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from millpond import savepoint
from millpond.errors import AgentError, ErrorKind
from millpond.format import layout
from millpond.format.changelog import Op, Record
from millpond.local import scratch
from millpond.model.ids import StoreId, VersionId
from millpond.operations import spread
from millpond.operations.inspect import verify
from millpond.operations.repartition import pipeline
from millpond.operations.savepoint import export
from millpond.rows.encode import encode_rows
from millpond.storage import LocalStorage
from tests.checkpoints import tree, version_id
from tests.examples import changelog_bytes
from tests.row_checkpoints import KEY, RowsBuilder
from tests.unit.operations.savepoint.test_savepoint import killed_at

KILLS = int(os.environ.get("MILLPOND_KILLS", "2"))
_ROWS = 10_000  # rows of a store: they take a moment
_SECONDS = 60
_AFTER_S = 0.3  # a kill comes at most this long after processes began to work
# These paths exist while processes work, in the hidden directory beside the target.
_AT_WORK = {"create": ".millpond-export-*/*", "restore": ".millpond-rows-*/*"}


class ManyRows(RowsBuilder):
    """One version of many rows."""

    def keys(self, version: int) -> int:
        return _ROWS

    def changelogs(self, store: StoreId, versions: int) -> None:
        rows = encode_rows(
            pa.array([{"k": i} for i in range(store.partition, 2 * _ROWS, 2)]), KEY
        ).to_pylist()
        place = self.key(store, 1)[:5]
        records = [Record(Op.PUT, place + bytes(row), self.value(store, 1)) for row in rows]
        key = layout.changelog_key(store, VersionId(1, version_id(store, 1)), self.spark_format)
        self.storage.put_bytes(key, changelog_bytes(self.header(store, 1), records))


@dataclass
class Scene:
    """A Spark checkpoint, a savepoint of it, and where the next thing is to be written."""

    checkpoint: Path
    saved: Path
    root: Path
    mark: str = field(
        default_factory=lambda: f"MILLPOND_TEST_{uuid.uuid4().hex}"
    )  # a variable in the environment of each started process
    rng: random.Random = field(default_factory=lambda: random.Random(_seed()))

    def __post_init__(self) -> None:
        self.place = self.root / "places/place"
        self.place.parent.mkdir()
        self.before = self.sources()

    def sources(self) -> dict[str, bytes]:
        files = {
            **tree(self.checkpoint),
            **{f"saved/{key}": data for key, data in tree(self.saved).items()},
        }
        return {key: data for key, data in files.items() if not key.startswith("millpond/pins/")}

    def act(self, what: str) -> None:
        if what == "create":
            savepoint.create(self.checkpoint, self.place, format="canonical")
        elif what == "restore":
            savepoint.restore(self.saved, self.place, partitions=3)
        else:
            savepoint.edit(self.saved, self.place, function=lambda rows: rows.slice(0, 100))

    def check_whole(self, what: str) -> None:
        good = (
            verify(LocalStorage(str(self.place)), "it")
            if what == "restore"
            else savepoint.verify(self.place)
        )
        assert good.ok
        assert savepoint.diff(self.saved, self.place).equal or what == "edit"
        shutil.rmtree(self.place)

    def stagings(self) -> set[Path]:
        return set(self.place.parent.iterdir())

    def await_work(self, what: str, left: Collection[Path] = ()) -> None:
        """Wait until processes work for a command.

        Args: left: directories that killed commands left. The command removes them.
        """
        deadline = time.monotonic() + _SECONDS
        while not any(_at_work(staging, what) for staging in self.stagings().difference(left)):
            assert time.monotonic() < deadline, "no process began to work"
            time.sleep(0.001)

    def workers(self) -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):  # it has just ended, or is another user's
                if (
                    entry.isdigit()
                    and self.mark.encode() in Path(f"/proc/{entry}/environ").read_bytes()
                ):
                    found.append(int(entry))
        return found

    def held(self) -> list[Path]:
        """Return the directories that a process has locked.

        A process that is just ending has no environment any more, but still has its locks.
        """
        found = []
        for directory in [*(self.root / "tmp").iterdir(), *self.stagings()]:
            try:
                os.close(scratch.lock(str(directory)))
            except BlockingIOError:
                found.append(directory)
        return found

    def check_ended(self) -> None:
        """Check that every process ends when its parent ends."""
        deadline = time.monotonic() + _SECONDS
        while left := [*self.workers(), *self.held()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)

    def check_left(self, what: str) -> None:
        """Check that the sources are unchanged. The next command removes everything else."""
        assert self.sources() == self.before
        assert all(path.name.startswith(".place.staging-") for path in self.place.parent.iterdir())
        scratch._remove_abandoned_once.cache_clear()  # as in another process
        self.act(what)
        self.check_whole(what)
        assert not list(self.place.parent.iterdir()) and not list((self.root / "tmp").iterdir())


def _at_work(staging: Path, what: str) -> bool:
    try:
        return any(staging.glob(_AT_WORK[what]))
    except FileNotFoundError:  # somebody removed or renamed it between two calls of glob
        return False


def _seed() -> int:
    seed = random.randrange(10**6)
    print("seed", seed)
    return seed


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("sources")
    checkpoint = ManyRows(root / "checkpoint").build(batches=1, snapshots=()).root
    savepoint.create(checkpoint, root / "saved", format="canonical")
    return checkpoint, root / "saved"


@pytest.fixture
def scene(sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Scene(*sources, tmp_path)


@pytest.fixture
def spreading(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let two processes work on the state, however small it is."""
    with monkeypatch.context() as patch:
        patch.setattr(export, "_PARALLEL_FROM_KEYS", 0)
        patch.setattr(pipeline, "BYTES_PER_PROCESS", 0)
        patch.setattr(spread, "process_count", lambda: 2)
        patch.setenv(scene.mark, "1")
        yield patch


def forked(action: Callable[[], object]) -> int:
    """Run `action` in a child. Return the child's pid."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child does not report
        try:
            action()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return pid


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are found in /proc")
@pytest.mark.parametrize("what", ["create", "restore"])
def test_killed_while_others_work_for_it(
    scene: Scene, spreading: pytest.MonkeyPatch, what: str
) -> None:
    for _ in range(KILLS):
        left = scene.stagings()
        pid = forked(lambda: scene.act(what))
        scene.await_work(what, left)
        time.sleep(scene.rng.uniform(0, _AFTER_S))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        scene.check_ended()
        if scene.place.exists():
            scene.check_whole(what)
    spreading.undo()
    scene.check_left(what)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are found in /proc")
@pytest.mark.parametrize("what", ["create", "restore"])
def test_one_of_the_others_is_killed(
    scene: Scene, spreading: pytest.MonkeyPatch, what: str
) -> None:
    def kill_one() -> None:
        scene.await_work(what)
        with suppress(ProcessLookupError, IndexError):  # too late: the process is gone
            os.kill(scene.rng.choice(scene.workers()), signal.SIGKILL)

    lost = 0
    for _ in range(10 * KILLS):
        killer = threading.Thread(target=kill_one)
        killer.start()
        try:
            scene.act(what)
        except AgentError as e:
            assert e.kind is ErrorKind.AGENT_LOST and "run the same command again" in e.hint
            assert not list(scene.place.parent.iterdir()), (
                "nothing is left at the target, nor beside it"
            )
            lost += 1
        else:  # the process had done its part
            scene.check_whole(what)
        finally:
            killer.join()
        scene.check_ended()
        if lost == max(1, KILLS // 3):
            break
    assert lost
    spreading.undo()
    scene.check_left(what)


@pytest.mark.deep
def test_edit_is_killed(scene: Scene) -> None:
    step = scene.rng.randrange(1, 6)
    while killed_at(step, lambda: scene.act("edit")):
        if scene.place.exists():
            scene.check_whole("edit")
        step += scene.rng.randrange(1, 12)
    scene.check_whole("edit")
    scene.check_left("edit")
