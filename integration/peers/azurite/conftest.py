"""One service for all tests of a run, and a session that knows ABFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.azurite import parts
from integration.peers.azurite.server import Azurite


@pytest.fixture(scope="session")
def connectors(versions: dict[str, str]) -> list[Path]:
    """Return the jars of ABFS."""
    if not parts.fetched():
        pytest.skip("Azurite or the jars of ABFS are not there: make peer-azurite fetches them")
    versions.update(parts.versions())
    return parts.abfs()


@pytest.fixture(scope="session")
def azurite(connectors: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Run the service."""
    with Azurite(tmp_path_factory.mktemp("azurite")).running() as server:
        yield server
