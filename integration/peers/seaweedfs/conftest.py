"""One server for all tests of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from integration.peers.loopback import Server, free_port
from integration.peers.seaweedfs import parts
from tests.s3_server import HADOOP, S3Server


class _Weed(Server):
    """All parts of SeaweedFS in one process. Each has a port for HTTP and one for gRPC."""

    def arguments(self) -> list[str]:
        """Return a port for each part; that of S3 is the server's own."""
        ports = [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")]
        parts_of_grpc = ("master", "volume", "filer", "s3")
        grpc = [f"-{part}.port.grpc={free_port()}" for part in parts_of_grpc]
        return [*ports, *grpc, f"-s3.port={self.port}"]


@pytest.fixture(scope="session")
def weed(versions: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run the server. Each test has a bucket of its own."""
    if not parts.fetched():
        pytest.skip("SeaweedFS is not there: make peer-seaweedfs builds it")
    versions.update(parts.versions())
    work = tmp_path_factory.mktemp("seaweedfs")
    keys = {"accessKey": HADOOP["fs.s3a.access.key"], "secretKey": HADOOP["fs.s3a.secret.key"]}
    test = {"name": "test", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}
    (work / "keys.json").write_text(json.dumps({"identities": [test]}))
    (work / "data").mkdir()
    command = [str(parts.SERVER), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-dir={work / 'data'}", f"-s3.config={work / 'keys.json'}"]
    # A bucket is a set of volumes, and each takes its space at once.
    command += ["-volume.max=0", "-master.volumeSizeLimitMB=16"]
    with _Weed(command, work / "log", HOME=str(work)).running() as server:
        yield S3Server(endpoint=server.endpoint)


@pytest.fixture
def boto(weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which savepoints reach the server. They take no session options."""
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)
