"""Heartbeats of queries, as a host sees them whose clock is another one's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.errors import ConflictError, ErrorKind
from millpond.spark import heartbeats
from millpond.storage import LocalStorage

_HOUR_NS = 3_600_000_000_000


def _beat(root: Path, number: int = 0, *, name: str = "run-1") -> Path:
    file = root / f"millpond/running/{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    value = {"host": "elsewhere", "pid": 1, "interval_ms": 100, "updated_ms": number}
    file.write_text(json.dumps(value))
    return file


@contextmanager
def _renewed(root: Path) -> Iterator[None]:
    over = threading.Event()

    def go_on() -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            _beat(root, number)

    _beat(root)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("skew_ns", [_HOUR_NS, -_HOUR_NS])
def test_a_clock_that_is_off_does_not_hide_a_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_ns: int
) -> None:
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + skew_ns)
    with _renewed(tmp_path), pytest.raises(ConflictError) as refused:
        heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING


@pytest.mark.parametrize("age_s", [3600, 90_000, -3600, -90_000])
def test_what_a_killed_driver_left_refuses_nothing(tmp_path: Path, age_s: int) -> None:
    file = _beat(tmp_path)
    os.utime(file, (time.time() - age_s,) * 2)
    heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1)


def test_what_killed_drivers_left_long_ago_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the heartbeats took a request for each of them. One that is renewed counts."""
    read: list[str] = []

    class Noting(LocalStorage):
        def read(self, key: str) -> bytes:
            read.append(key)
            return super().read(key)

    day_ago_s = time.time() - 86_400
    os.utime(_beat(tmp_path, name="run-2"), (day_ago_s + 3600,) * 2)
    for number in range(3, 40):
        os.utime(_beat(tmp_path, name=f"run-{number}"), (day_ago_s - 3600 * number,) * 2)
    storage = Noting(str(tmp_path))
    heartbeats.refuse_running(storage, "it", 0.1)
    assert heartbeats.heartbeats(storage) == []
    assert set(read) == {"millpond/running/run-2.json"}
    slept = time.sleep

    def sleep(seconds: float) -> None:
        slept(0.01)
        _beat(tmp_path, 1, name="run-7")

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(ConflictError, match="run-7"):
        heartbeats.refuse_running(storage, "it", 0.1)


@pytest.mark.parametrize(("age_s", "shown"), [(-3600, True), (0, True), (3600, False)])
def test_a_look_at_what_runs_waits_for_nothing(tmp_path: Path, age_s: int, shown: bool) -> None:
    os.utime(_beat(tmp_path), (time.time() - age_s,) * 2)
    assert [beat.age_ms >= 0 for beat in heartbeats.heartbeats(LocalStorage(str(tmp_path)))] == (
        [True] if shown else []
    )


def test_a_heartbeat_that_goes_while_it_is_watched(tmp_path: Path) -> None:
    file = _beat(tmp_path)
    os.utime(file, (time.time() - 3600,) * 2)
    threading.Timer(0.05, file.unlink).start()
    heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1)


@pytest.mark.parametrize("clock_ahead_ns", [0, _HOUR_NS])
def test_a_query_that_is_started_while_an_old_heartbeat_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock_ahead_ns: int
) -> None:
    """The driver was killed on another host, and is started again there. Only the heartbeats of
    before were looked at.
    """
    os.utime(_beat(tmp_path), (time.time() - 3600,) * 2)
    right, slept = time.time_ns, time.sleep

    def sleep(seconds: float) -> None:
        slept(0.01)
        (tmp_path / "millpond/running/run-2.json").write_text('{"host": "elsewhere", "pid": 1}')

    monkeypatch.setattr(time, "time_ns", lambda: right() + clock_ahead_ns)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(ConflictError) as refused:
        heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING and "run-2" in str(refused.value)


def test_a_command_that_begins_while_an_old_heartbeat_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meets the file of the command that watches, and gives way. A caller without a file has to
    give way to it.
    """
    os.utime(_beat(tmp_path), (time.time() - 3600,) * 2)
    slept = time.sleep

    def sleep(seconds: float) -> None:
        slept(0.01)
        file = tmp_path / "millpond/running/command-2.json"
        file.write_text('{"host": "elsewhere", "pid": 1}')

    monkeypatch.setattr(time, "sleep", sleep)
    heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1, but="command-1")
    (tmp_path / "millpond/running/command-2.json").unlink()
    with pytest.raises(ConflictError) as refused:
        heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0.1)
    assert refused.value.kind is ErrorKind.COMMAND_RUNNING


def _of_an_ended_process(root: Path, **more: str) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    file = _beat(root)
    value = {"host": socket.gethostname(), "pid": ended.pid, "interval_ms": 5000, **more}
    file.write_text(json.dumps(value))


def _here() -> dict[str, str]:
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PID namespaces")
@pytest.mark.parametrize(
    "other",
    [{"pid_namespace": "pid:[1]"}, {"boot_id": "another"}, {"pid_namespace": ""}, {"boot_id": ""}],
)
def test_a_pid_of_another_namespace_is_not_known_to_be_gone(
    tmp_path: Path, other: dict[str, str]
) -> None:
    """Two containers may share a host's name. Each has pids of its own."""
    _of_an_ended_process(tmp_path, **{**_here(), **other})
    with pytest.raises(ConflictError) as refused:
        heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PID namespaces")
def test_a_pid_of_ones_own_namespace_is_known_to_be_gone(tmp_path: Path) -> None:
    _of_an_ended_process(tmp_path, **_here())
    heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0)


def test_a_heartbeat_of_an_older_version_has_the_host_alone(tmp_path: Path) -> None:
    _of_an_ended_process(tmp_path)
    heartbeats.refuse_running(LocalStorage(str(tmp_path)), "it", 0)
