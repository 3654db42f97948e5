"""Azurite as a place for Spark checkpoints, by Hadoop's ABFS: the tests of all storages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration.jvm import SPARK_JARS
from integration.peers.azurite import parts
from integration.peers.azurite.server import Azurite
from integration.peers.matrix import Place, PlaceContract, PlaceQueries, note
from integration.streams import settings

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_numbers = itertools.count()


@pytest.fixture
def place(azurite: Azurite, spark: SparkSession) -> Iterator[Place]:
    """A directory of the test. The session reaches the service."""
    root = f"{azurite.container('matrix')}/{next(_numbers)}"
    with settings(spark, azurite.hadoop):
        yield Place(
            storage="Azurite",
            door="Hadoop's ABFS",
            root=root,
            hadoop=azurite.hadoop,
            jars=parts.abfs(),
        )


class TestContract(PlaceContract):
    """The JVM of the session moves the files."""


def test_abfs_is_of_the_release_of_sparks_client() -> None:
    (client,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    assert client.name == f"hadoop-client-api-{parts.versions()['hadoop-azure']}.jar"


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    """ABFS deletes a file before it renames another to its name."""
    note(place, "creates_once", "lists_at_once")


class TestQueries(PlaceQueries):
    """Kills, a savepoint, a fork and a rescale."""
