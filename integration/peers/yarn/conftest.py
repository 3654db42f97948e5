"""One cluster for all tests of a run, with the archive on its HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.peers.hdfs import jars
from integration.peers.yarn.archive import ARCHIVE
from integration.peers.yarn.cluster import Yarn, started


@pytest.fixture(scope="session")
def yarn(versions: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """Run a cluster. Everybody may write everywhere on its HDFS."""
    if not (jars.fetched(jars.YARN) and ARCHIVE.is_file()):
        pytest.skip("the jars of Hadoop's servers are not there: make peer-yarn fetches them")
    versions["Apache Hadoop"] = jars.version()
    with started(tmp_path_factory.mktemp("yarn")) as cluster:
        cluster.hdfs.shell("-chmod", "777", "/")
        cluster.hdfs.shell("-mkdir", "/apps")
        cluster.hdfs.shell("-put", str(ARCHIVE), "/apps/millpond-env.tar.gz")
        yield cluster
