"""Work that is spread over processes.

Results come in order, and errors come as they are. Nothing is left of the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.errors import AgentError, ErrorKind, FormatError, MillpondError, UnsupportedError
from millpond.operations.spread import Engine, Processes, engine_for, process_count
from millpond.storage import LocalStorage, MemoryStorage
from millpond.storage.given import given_by, reached_by
from tests.spread_work import Unsendable, work


@pytest.mark.parametrize("engine", [Processes(1), Processes(2)], ids=["here", "elsewhere"])
def test_results_come_in_the_order_of_the_jobs(engine: Engine) -> None:
    assert list(engine.map(work, "a", [3, 1, 2])) == ["a3", "a1", "a2"]
    assert list(engine.map(work, "a", [])) == []


def test_modules_in_the_working_directory_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes look for modules only where this process looks."""
    for name in ("json.py", "queue.py", "millpond.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert list(Processes(2).map(work, "a", [1, 2])) == ["a1", "a2"]
    assert not (tmp_path / "taken").exists()


def test_each_process_does_several_jobs() -> None:
    processes = set(Processes(2).map(work, "pid", list(range(8))))
    assert len(processes) <= 2 and str(os.getpid()) not in processes


@pytest.mark.parametrize(
    ("job", "cls", "kind"),
    [
        (-1, FormatError, ErrorKind.SAVEPOINT_DAMAGED),
        (-2, MillpondError, ErrorKind.INTERNAL),
        (-3, AgentError, ErrorKind.AGENT_LOST),
    ],
)
def test_what_fails_elsewhere_fails_here(
    job: int, cls: type[MillpondError], kind: ErrorKind
) -> None:
    with pytest.raises(cls) as caught:
        list(Processes(2).map(work, "a", [1, job, 2, 3]))
    assert caught.value.kind is kind and caught.value.hint
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True
    ).stdout
    assert "spread_worker" not in children


def test_ctrl_c_is_for_the_process_that_waits(capfd: pytest.CaptureFixture[str]) -> None:
    """On a terminal it reaches all: the workers printed a traceback each."""
    assert list(Processes(2).map(work, "interrupted", [1, 2, 3])) == ["1", "2", "3"]
    assert capfd.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(MillpondError, match=Unsendable.__name__):
        list(Processes(2).map(work, "a", [1, -2]))


def test_as_many_processes_as_cores_but_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"

    def count(cores: int, text: str | None) -> int:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
        quota.unlink(missing_ok=True)
        if text is not None:
            quota.write_text(text)
        return process_count(str(quota))

    assert [count(cores, None) for cores in (1, 2, 64)] == [1, 2, 3]
    assert count(64, "max 100000\n") == 3
    assert count(64, "250000 100000\n") == 2
    assert count(64, "50000 100000\n") == 1


def test_storage_that_only_this_process_reaches() -> None:
    assert (
        list(engine_for(None, [MemoryStorage()], large=True).map(work, "pid", [1, 2]))
        == [str(os.getpid())] * 2
    )
    with pytest.raises(UnsupportedError):
        engine_for(object(), [LocalStorage("/tmp"), MemoryStorage()], large=True)


@pytest.mark.parametrize("engine", [Processes(1), Processes(2)], ids=["here", "elsewhere"])
def test_storages_are_reached_as_the_caller_was_told(engine: Engine) -> None:
    with reached_by(given_by({"storage.s3.endpoint": "http://here:1"})):
        found = list(engine.map(work, "endpoint", [1, 2]))
    assert found == ["http://here:1"] * 2
    assert list(engine.map(work, "endpoint", [1, 2])) == ["None"] * 2
