"""One broker for all tests of a run, and a session that knows Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.kafka import jars
from integration.peers.kafka.broker import Broker, broker


@pytest.fixture(scope="session")
def connectors(versions: dict[str, str]) -> list[Path]:
    """Return the jars of Spark's connector to Kafka."""
    if not jars.fetched():
        pytest.skip("the jars of the Kafka broker are not there: make peer-kafka fetches them")
    versions.update(jars.versions())
    return jars.connector()


@pytest.fixture(scope="session")
def kafka(connectors: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker. It keeps its topics from test to test, so each test has its own."""
    with broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started
