"""A MinIO server on loopback, with its data below a directory of the test. A test may kill it."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.peers.loopback import free_port
from integration.peers.minio import parts
from integration.processes import wait_until
from tests.s3_server import HADOOP, S3Server

REGION = HADOOP["fs.s3a.endpoint.region"]
_START_S = 60


class Minio(S3Server):
    """The server, as the tests of S3 know one."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(endpoint=f"http://{self._address}")

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings that reach it. A server that is down fails soon."""
        return {
            **HADOOP,
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.attempts.maximum": "2",
            "fs.s3a.retry.limit": "2",
        }

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        command = [str(parts.SERVER), "server", str(self._work / "data"), "--quiet"]
        command += ["--address", self._address, "--console-address", "127.0.0.1:0"]
        with self._log.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "HOME": str(self._work),
                    "MINIO_ROOT_USER": HADOOP["fs.s3a.access.key"],
                    "MINIO_ROOT_PASSWORD": HADOOP["fs.s3a.secret.key"],
                    "MINIO_BROWSER": "off",
                    "MINIO_REGION": REGION,
                    "MINIO_UPDATE": "off",
                    "MINIO_PROMETHEUS_AUTH_TYPE": "public",
                },
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._serves, seconds=_START_S, what=f"MinIO to serve {self.endpoint}")

    def kill(self) -> None:
        """Kill the process with -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def runs(self) -> bool:
        """Return whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def requests(self) -> Counter[str]:
        """Return the number of requests so far, by the server's names of them (`putobject`).

        The server counts them anew every ten seconds.
        """
        with urllib.request.urlopen(f"{self.endpoint}/minio/v2/metrics/cluster") as answer:
            lines: list[str] = answer.read().decode().splitlines()
        found = (re.match(r'minio_s3_requests_total\{.*?api="(\w+)".*\} (\S+)', x) for x in lines)
        return Counter({match[1]: int(float(match[2])) for match in found if match})

    @property
    def _log(self) -> Path:
        return self._work / "minio.log"

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


@contextmanager
def started(work: Path) -> Iterator[Minio]:
    """Run a server until the end of the block."""
    server = Minio(work)
    try:
        server.start()
        yield server
    finally:
        server.kill()
