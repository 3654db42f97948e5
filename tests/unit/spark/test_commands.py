"""One command at a time changes a Spark checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import ConflictError, ErrorKind
from millpond.format import layout, spark_names
from millpond.spark import commands, heartbeats
from millpond.spark.commands import Hold, at_work
from millpond.storage import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    made = LocalStorage(str(tmp_path))
    made.put_bytes(spark_names.QUERY_METADATA_KEY, b"{}")
    made.put_bytes(layout.FORMAT_KEY, b"{}")
    return made


def _beats(storage: LocalStorage) -> list[str]:
    keys = [info.key for info in storage.list(layout.RUNNING_PREFIX)]
    beats = [key for key in keys if key.endswith(".json")]
    holds = [key.removesuffix(".hold") for key in keys if key.endswith(".hold")]
    assert holds == [key.removesuffix(".json") for key in beats if layout.COMMAND_PREFIX in key]
    return beats


def _take_over(storage: LocalStorage) -> None:
    """Delete what the next command deletes when the heartbeat of this one is old."""
    prefix = layout.RUNNING_COMMANDS_PREFIX
    storage.delete([info.key for info in storage.list(prefix)])


def _refused(storage: LocalStorage) -> ConflictError:
    with pytest.raises(ConflictError) as refused, at_work(storage, "it", "second", 0.0):
        raise AssertionError("two at a time")
    return refused.value


def test_a_second_command_is_refused(storage: LocalStorage) -> None:
    with at_work(storage, "it", "first"):
        (beat,) = _beats(storage)
        assert json.loads(storage.read(beat))["command"] == "first"
        error = _refused(storage)
        assert error.kind is ErrorKind.COMMAND_RUNNING and "another command" in str(error)
        assert _beats(storage) == [beat]
        assert heartbeats.heartbeats(storage) == [], "a command is no query"
    assert _beats(storage) == []
    with at_work(storage, "it", "second", 0.0):
        pass


def test_a_second_command_waits_a_moment(storage: LocalStorage) -> None:
    first = at_work(storage, "it", "first")
    first.__enter__()
    threading.Timer(0.2, first.__exit__, (None, None, None)).start()
    with at_work(storage, "it", "second", 30.0):
        assert len(_beats(storage)) == 1


@pytest.mark.parametrize("killed", ["in this process", "another process"])
def test_a_killed_command_is_followed(storage: LocalStorage, killed: str) -> None:
    """The next one deletes what it left."""
    code = (
        "import sys, os, signal\n"
        "from millpond.spark.commands import at_work\n"
        "from millpond.storage import LocalStorage\n"
        "with at_work(LocalStorage(sys.argv[1]), 'it', 'killed'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    if killed == "another process":
        assert subprocess.run([sys.executable, "-c", code, storage.root]).returncode == -9
    else:
        hold = Hold(storage, "it", "killed")
        hold._begin(0.0)
        hold._over.set()
        heartbeats.OWN_COMMANDS.discard(hold.name)
    (left,) = _beats(storage)
    with at_work(storage, "it", "second", 0.0):
        (own,) = _beats(storage)
        assert own != left


def test_a_command_that_stood_still_notices(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_work(storage, "it", "first") as hold:
        _take_over(storage)
        hold.check()  # it looked a moment ago
        monkeypatch.setattr(commands, "_CHECK_S", 0.0)
        with pytest.raises(ConflictError, match="another one took over") as lost:
            hold.check()
        assert lost.value.kind is ErrorKind.COMMAND_RUNNING


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_a_laptop_that_slept_counts_as_time(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`time.monotonic` stands still meanwhile."""
    real = time.clock_gettime
    with at_work(storage, "it", "first") as hold:
        _take_over(storage)
        monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 3600)
        with pytest.raises(ConflictError, match="another one took over"):
            hold.check()


def test_its_heartbeat_is_renewed_and_not_brought_back(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_INTERVAL_MS", 10)
    with at_work(storage, "it", "first") as hold:
        (key,) = _beats(storage)
        before = storage.read(key)
        deadline = time.monotonic() + 60
        while storage.read(key) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        hold._over.set()
        hold._thread.join()
        _take_over(storage)
        hold._over.clear()
        hold._renew()  # returns: the file is another command's to write
        assert _beats(storage) == []


def test_a_renewal_that_comes_late_brings_nothing_back(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command stood still after it saw its file, or its write hung; another one took over."""
    monkeypatch.setattr(commands, "_INTERVAL_MS", 10)
    monkeypatch.setattr(commands, "_CHECK_S", 0.0)
    with at_work(storage, "it", "first") as hold:
        hold._over.set()
        hold._thread.join()
        write = hold._write

        def late() -> None:
            _take_over(storage)
            write()
            with pytest.raises(ConflictError, match="another one took over"):
                hold.check()

        monkeypatch.setattr(hold, "_write", late)
        hold._over.clear()
        hold._renew()
        assert _beats(storage) == []


def test_one_that_stands_still_as_it_begins_notices(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = heartbeats.refuse_running

    def slow(*arguments: Any, **more: Any) -> None:
        refuse(*arguments, **more)
        _take_over(storage)

    monkeypatch.setattr(commands, "refuse_running", slow)
    with pytest.raises(ConflictError, match="another one took over"), at_work(storage, "it", "one"):
        raise AssertionError("it begins")


def test_a_query_is_told_from_a_command(storage: LocalStorage, tmp_path: Path) -> None:
    beat = {"host": "elsewhere", "pid": 1, "interval_ms": 5000}
    storage.put_bytes(f"{layout.RUNNING_PREFIX}run-1.json", json.dumps(beat).encode())
    assert _refused(storage).kind is ErrorKind.QUERY_RUNNING
    assert _beats(storage) == [f"{layout.RUNNING_PREFIX}run-1.json"]


def test_where_no_state_is_nothing_is_written(tmp_path: Path) -> None:
    with at_work(LocalStorage(str(tmp_path)), "it", "first") as hold:
        hold.check()
        assert list(tmp_path.iterdir()) == []
