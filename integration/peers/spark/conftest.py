"""The jars of Spark's tests."""

from __future__ import annotations

import pytest

from integration.peers.spark import jars


@pytest.fixture(scope="session")
def fetched() -> None:
    """Skip the tests if the jars are not there."""
    if not jars.fetched():
        pytest.skip("the jars of Spark's tests are not there: make peer-spark fetches them")
