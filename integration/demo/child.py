"""The driver process as its parent sees it: start, events, end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from integration.demo import processes

LOG_TAIL_LINES = 40
END_WITHIN_S = 20.0


class Driver:
    """One life of the process that runs the four queries."""

    def __init__(self, process: subprocess.Popen[bytes], events: TextIO) -> None:
        self.process = process
        self._pipe = events
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event; an empty one if none came within `timeout_s` seconds.

        None if the driver has ended.
        """
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return {}

    def join(self) -> None:
        """Wait until all events of the ended driver are read."""
        self._reader.join()

    def _read(self) -> None:
        try:
            for line in self._pipe:
                if line.endswith("\n"):  # a killed driver may leave half a line
                    self._events.put(json.loads(line))
        finally:
            self._events.put(None)


@contextmanager
def driver(work: Path, provider: str, tag: str) -> Iterator[Driver]:
    """Start the driver. The end of the block kills its remaining processes."""
    # Events have their own pipe: the JVM inherits stdout, and may print anything to it.
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as events:
        try:
            with log_path(work).open("ab") as log:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "integration.demo.job",
                        str(work),
                        provider,
                        str(writing),
                    ],
                    env=environment(work, tag),
                    cwd=work,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing,),
                )
        finally:
            os.close(writing)
        child = Driver(process, events)
        try:
            yield child
        finally:
            processes.end_all(tag, timeout_s=END_WITHIN_S)
            process.wait()
            child.join()
            if process.stdin:
                process.stdin.close()


def log_path(work: Path) -> Path:
    """Return the file for stdout and stderr of all lives: Spark's log and the agent's."""
    return work / "driver.log"


def log_tail(work: Path) -> str:
    """Return the last lines of the drivers' log, under a heading."""
    lines = log_path(work).read_text(errors="replace").splitlines()
    return "\n".join(["last lines of the driver's log:", *lines[-LOG_TAIL_LINES:]])


def environment(work: Path, tag: str) -> dict[str, str]:
    """Return the environment of the demo's children.

    It has the tag, loopback only, scratch directories below `work`, and no other Spark.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_CONF"))
    }
    root = str(Path(__file__).resolve().parents[2])
    return inherited | {
        processes.TAG: tag,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(work / "scratch"),
    }
