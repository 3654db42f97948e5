"""An emulator of Google Cloud Storage as a place for Spark checkpoints: the storages' tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.peers.commands import every_command
from integration.peers.gcs import parts
from integration.peers.gcs.server import Gcs
from integration.peers.matrix import Place, PlaceContract, PlaceQueries, note
from integration.streams import settings

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_numbers = itertools.count()


@pytest.fixture
def place(gcs: Gcs, spark: SparkSession) -> Iterator[Place]:
    """A bucket of the test. The session reaches the emulator."""
    root = f"{gcs.bucket(f'matrix-{next(_numbers)}')}/checkpoints"
    with settings(spark, gcs.hadoop):
        yield Place(
            storage="fake-gcs-server",
            door="Google's connector",
            root=root,
            hadoop=gcs.hadoop,
            jars=parts.connector(),
        )


class TestContract(PlaceContract):
    """The JVM of the session moves the files."""


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    note(place, "creates_once", "replaces_whole", "lists_at_once")


class TestQueries(PlaceQueries):
    """Kills, a savepoint, a fork and a rescale."""


def test_every_command(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    every_command(place, spark, tmp_path)
