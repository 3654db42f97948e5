# SPDX-License-Identifier: Apache-2.0
"""Processes of the benchmarks: each in a session of its own, run to its end or killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_env import REPOSITORY, BenchError

_CAUSE = re.compile(r"MILLPOND_|Caused by|(?:Exception|Error)(?::|$)")


@contextmanager
def _family(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a session of its own, and kill all of it at the end.

    So the end takes along the JVM of pyspark, and Millpond's agent. `log` takes the output.
    """
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=REPOSITORY,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end_family(process)


def run_measured(command: list[str], *, log: Path, timeout_s: float) -> None:
    """Run one process to its end. `log` takes its output.

    Raises: BenchError: it failed or ran out of time. The message has the log's tail.
    """
    with _family(command, log) as process:
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
    if code != 0:
        why = f"exit code {code}" if code is not None else f"no end after {timeout_s:.0f} s"
        raise _failure(command, why, log)


def _failure(command: Sequence[str], why: str, log: Path) -> BenchError:
    lines = log.read_text(errors="replace").splitlines()
    # Stack traces push the cause out of the tail, so begin with the causes.
    causes = [line for line in lines if _CAUSE.search(line)][:5]
    tail = "\n".join([*causes, "...", *lines[-30:]])
    return BenchError(f"{Path(command[0]).name}: {why}; log {log}:\n{tail}")


def kill_when(
    due: Callable[[], bool],
    command: Sequence[str],
    spec: Mapping[str, Any],
    *,
    work_dir: Path,
    timeout_s: float,
) -> None:
    """Run a command as `run_spec` does, and kill all its processes once `due` says so.

    Raises: BenchError: it ended before, or ran out of time.
    """
    given, log = _given(spec, work_dir), work_dir / "log"
    every = [*command, str(given), str(work_dir / "result.json")]
    deadline = time.monotonic() + timeout_s
    with _family(every, log) as process:
        while not due():
            if process.poll() is not None:
                raise _failure(every, f"it ended, exit code {process.returncode}", log)
            if time.monotonic() > deadline:
                raise _failure(every, f"not to be killed after {timeout_s:.0f} s", log)
            time.sleep(0.005)


def _given(spec: Mapping[str, Any], work_dir: Path) -> Path:
    work_dir.mkdir(parents=True, exist_ok=True)
    given = work_dir / "spec.json"
    given.write_text(json.dumps(spec))
    return given


def run_spec(
    command: Sequence[str], spec: Mapping[str, Any], *, work_dir: Path, timeout_s: float
) -> dict[str, Any]:
    """Run `<command> <spec.json> <result.json>` as `run_measured` does, and return its result.

    Args:
        work_dir: takes spec, result and log. It may exist.
    """
    given, result = _given(spec, work_dir), work_dir / "result.json"
    run_measured([*command, str(given), str(result)], log=work_dir / "log", timeout_s=timeout_s)
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def millpond(*arguments: str) -> tuple[float, str]:
    """Run a command of Millpond, as a user does. Return its seconds, and what it printed.

    Raises: BenchError: it failed.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "millpond.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        raise BenchError(f"millpond {arguments[0]}: {done.stderr}")
    return seconds, done.stdout


def _end_family(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of a process's session, and wait for its end: the next measure runs alone.

    Waits for at most five seconds: in a container whose init reaps nothing, dead processes stay
    listed.
    """
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.poll()  # reaps the leader
        time.sleep(0.02)
