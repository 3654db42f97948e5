"""HDFS as a place for Spark checkpoints: the tests of all storages, by both ways to a JVM."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.jvm import SPARK_JARS
from integration.peers.commands import every_command
from integration.peers.hdfs import jars
from integration.peers.hdfs.cluster import Hdfs
from integration.peers.matrix import Place, PlaceContract, PlaceQueries, note

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_numbers = itertools.count()


@pytest.fixture
def place(hdfs: Hdfs) -> Place:
    """A directory of the test on the cluster."""
    root = f"{hdfs.uri}/tests/{next(_numbers)}"
    return Place(storage="HDFS", door="Hadoop's client", root=root)


class TestContractInASession(PlaceContract):
    """The JVM of the session moves the files."""

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        """Start the session."""


class TestContract(PlaceContract):
    """A JVM of this process's own moves the files, as for the command line."""

    @pytest.fixture(autouse=True)
    def _no_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("millpond.storage.hadoop_jvm.running_class", lambda name: None)


def test_the_servers_are_of_the_release_of_sparks_client() -> None:
    (client,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    assert client.name == f"hadoop-client-api-{jars.version()}.jar"


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    note(place, "creates_once", "replaces_whole", "lists_at_once")


class TestQueries(PlaceQueries):
    """Kills, a savepoint, a fork and a rescale."""

    def kills(self, place: Place) -> int:
        return 2


def test_every_command(place: Place, hdfs: Hdfs, spark: SparkSession, tmp_path: Path) -> None:
    # a process without a session finds the cluster by the same settings
    every_command(place, spark, tmp_path)
