"""One server for all tests of a run, and a session that knows s3a."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.minio import parts
from integration.peers.minio.server import Minio, started


@pytest.fixture(scope="session")
def connectors(versions: dict[str, str]) -> list[Path]:
    """Return the jars of s3a."""
    if not parts.fetched():
        pytest.skip("MinIO or the jars of s3a are not there: make peer-minio fetches them")
    versions.update(parts.versions())
    return parts.s3a()


@pytest.fixture(scope="session")
def minio(connectors: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """Run a server. Each test has a bucket of its own."""
    with started(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def boto(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which savepoints reach the server. They take no session options."""
    for name, value in minio.environment().items():
        monkeypatch.setenv(name, value)
