"""A session that knows Delta tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from integration.peers.delta import jars
from integration.peers.delta.session import session


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, versions: dict[str, str]
) -> Iterator[SparkSession]:
    """Run a session with Delta Lake and Millpond."""
    if not jars.fetched():
        pytest.skip("the jars of Delta Lake are not there: make peer-delta fetches them")
    versions.update(jars.versions())
    made = session(tmp_path_factory.mktemp("delta"), {})
    made.sparkContext.setLogLevel("ERROR")
    yield made
    gateway = made.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    made.stop()
    gateway.shutdown()
    java.stdin.close()  # pyspark's JVM ends with its standard input
    java.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None
