"""One cluster for all tests of a run. A test that kills a node waits until it is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.peers.hdfs import jars
from integration.peers.hdfs.cluster import Hdfs, started


@pytest.fixture(scope="session")
def hdfs(versions: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Run a cluster. `/tests` belongs to the user of the tests."""
    if not jars.fetched(jars.HDFS):
        pytest.skip("the jars of Hadoop's servers are not there: make peer-hdfs fetches them")
    versions["Apache Hadoop"] = jars.version()
    with started(tmp_path_factory.mktemp("hdfs")) as cluster:
        cluster.shell("-mkdir", "-p", "/tests")
        cluster.shell("-chmod", "777", "/tests")
        yield cluster
