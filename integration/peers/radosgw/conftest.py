"""One gateway for all tests of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.loopback import free_port
from integration.peers.radosgw import parts
from tests.s3_server import S3Server


@pytest.fixture(scope="session")
def gateway(versions: dict[str, str]) -> Iterator[S3Server]:
    """Run the gateway, with a monitor and a daemon that keeps objects in memory."""
    if not parts.fetched():
        pytest.skip("Ceph's gateway is not there: make peer-radosgw fetches it")
    versions.update(parts.versions())
    port, log = free_port(), parts.ROOT / "log"
    command = [str(Path(__file__).with_name("gateway.sh")), str(parts.ROOT), str(port)]
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "ready\n", (line, Path(log).read_text())
            yield S3Server(endpoint=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def boto(gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which savepoints reach the gateway. They take no session options."""
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
