"""Servers of the peers on loopback, and Hadoop's settings for those who reach them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

from integration.processes import wait_until

_START_S = 120
# A variable of a test's process: Hadoop's client moves all files.
WITHOUT_OBSTORE = "MILLPOND_PEER_WITHOUT_OBSTORE"


class Server:
    """A server that is one process and speaks HTTP. A test may kill it and start it again.

    Args:
        command: runs it, without what names the port.
        log: gets what it says.
        env: variables beside this process's own.
    """

    def __init__(self, command: Sequence[str], log: Path, **env: str) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._command, self._log, self._env = command, log, env
        self._process: subprocess.Popen[bytes] | None = None

    def arguments(self) -> list[str]:
        """Return the arguments that name the port."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process, and wait until it answers requests."""
        with self._log.open("ab") as said:
            self._process = subprocess.Popen(
                [*self._command, *self.arguments()],
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._answers, seconds=_START_S, what=f"an answer of {self.endpoint}")

    def kill(self) -> None:
        """Kill the process with -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def runs(self) -> bool:
        """Return whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run it until the end of the block."""
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def _answers(self) -> bool:
        assert self.runs(), self._log.read_text()
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True  # it refuses what nobody signed
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def write_site(path: Path, settings: Mapping[str, str]) -> None:
    """Write a file of Hadoop's settings."""
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    ]
    path.write_text(f"<configuration>\n{''.join(lines)}</configuration>\n")


def free_port() -> int:
    """Return a port on loopback that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def without_obstore() -> None:
    """Be a process in which obstore is not installed, if the variable says so."""
    if WITHOUT_OBSTORE in os.environ:
        sys.modules["obstore"] = None  # type: ignore[assignment]
