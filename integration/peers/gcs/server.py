"""fake-gcs-server on loopback. It keeps objects in memory, and asks nobody who they are."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from integration.peers.gcs import parts
from integration.peers.loopback import Server
from millpond.config import MIB

_GOOGLE = "com.google.cloud.hadoop.fs.gcs"
# Hadoop 3.5's own defaults have units, such as 64m, which Google's connector cannot read.
SIZES = {
    "fs.gs.block.size": str(64 * MIB),
    "fs.gs.inputstream.inplace.seek.limit": str(8 * MIB),
    "fs.gs.inputstream.min.range.request.size": str(2 * MIB),
    "fs.gs.outputstream.buffer.size": str(8 * MIB),
    "fs.gs.rewrite.max.chunk.size": str(512 * MIB),
}


class Gcs(Server):
    """The emulator."""

    def __init__(self, work: Path) -> None:
        super().__init__([str(parts.SERVER), "-scheme", "http", "-host", "127.0.0.1"], work / "log")

    def arguments(self) -> list[str]:
        return [
            *("-port", str(self.port), "-external-url", self.endpoint),
            *("-public-host", self.endpoint.removeprefix("http://")),
            # Its files on disk cannot be called like folders, as Google's markers of folders are.
            *("-backend", "memory"),
        ]

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings that reach it. A server that is down fails soon."""
        return {
            "fs.gs.impl": f"{_GOOGLE}.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": f"{_GOOGLE}.GoogleHadoopFS",
            "fs.gs.storage.root.url": self.endpoint,
            "fs.gs.project.id": "test",
            "fs.gs.auth.type": "UNAUTHENTICATED",
            # The emulator lacks the request that moves an object: it is copied, then deleted.
            "fs.gs.operation.move.enable": "false",
            "fs.gs.http.max.retry": "2",
            "fs.gs.http.connect-timeout": "2000",
            **SIZES,
        }

    def bucket(self, name: str) -> str:
        """Make a bucket. Return its URI."""
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=test",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return f"gs://{name}"
