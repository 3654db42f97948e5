"""Drives `real_time_job`, a process of its own, for tests of queries in real-time mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.jvm import REPO
from integration.processes import alive, below, wait_until


class RefusedError(Exception):
    """The job answered with an error."""


class RealTimeJob:
    """A process with one session and one query at a time. Leave it by `with`."""

    def __init__(
        self, work: Path, *, provider: str = "millpond", conf: Mapping[str, str] | None = None
    ) -> None:
        work.mkdir(exist_ok=True)
        self.work = work
        self._log = (work / f"log-{provider}").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "integration.real_time_job"),
                *(str(work), provider, json.dumps(dict(conf or {}))),
            ],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )

    def __enter__(self) -> RealTimeJob:
        """Wait until the session is there."""
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the driver, its agent and this process's Python with -9, and wait for their end."""
        children = [p.pid for p in below(self._process.pid)]
        for pid in [*children, self._process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(timeout=30)
        wait_until(
            lambda: not any(alive(pid) for pid in children), seconds=30, what="the job's processes"
        )
        self._log.close()

    def do(self, command: str, /, **arguments: Any) -> Any:
        """Run a command of `real_time_job.Job`. Raises: RefusedError."""
        self.send(command, **arguments)
        return self._answer()

    def send(self, command: str, /, **arguments: Any) -> None:
        """Send a command whose answer nobody waits for: the job will be killed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise RefusedError(answer["error"])
                return answer["ok"]
        raise AssertionError(f"the job ended: {Path(self._log.name).read_text()[-3000:]}")

    def out(self, name: str) -> list[str]:
        """Return the rows that the sink of a query got so far, in any order."""
        folder = self.work / f"out-{name}"
        return [
            line.split(" ", 1)[1]
            for file in folder.glob("*")
            for line in file.read_text().splitlines()
        ]


@contextmanager
def with_either_store(work: Path) -> Iterator[dict[str, RealTimeJob]]:
    """Run one process with Millpond, one with Spark's RocksDB store."""
    ours = RealTimeJob(work / "millpond")
    theirs = RealTimeJob(work / "rocksdb", provider="rocksdb")  # both start at the same time
    with ours, theirs:
        yield {"millpond": ours, "rocksdb": theirs}


def latest(rows: Sequence[str]) -> dict[str, str]:
    """Return the greatest of the rows of each first column."""
    found: dict[str, str] = {}
    for row in rows:
        key = row.split(",", 1)[0]
        found[key] = max(found.get(key, row), row)
    return found
