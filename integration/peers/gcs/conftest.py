"""One emulator for all tests of a run, and a session that knows Google's connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.gcs import parts
from integration.peers.gcs.server import Gcs


@pytest.fixture(scope="session")
def connectors(versions: dict[str, str]) -> list[Path]:
    """Return the connector."""
    if not parts.fetched():
        pytest.skip("the emulator or the connector is not there: make peer-gcs fetches them")
    versions.update(parts.versions())
    return parts.connector()


@pytest.fixture(scope="session")
def gcs(connectors: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcs]:
    """Run the emulator."""
    with Gcs(tmp_path_factory.mktemp("gcs")).running() as server:
        yield server
