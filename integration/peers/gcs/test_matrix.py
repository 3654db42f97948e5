"""An emulator of Google Cloud Storage as a place for Spark checkpoints: the storages' tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.peers.gcs import parts
from integration.peers.gcs.server import Gcs
from integration.peers.matrix import (
    Place,
    PlaceContract,
    exactly_once,
    note,
    savepoint_and_rescale,
)
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
    found = note(place)
    assert found["creates_once"] and found["replaces_whole"] and found["lists_at_once"], found


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_kills_lose_nothing(place: Place, tmp_path: Path, checkpoint_format: int) -> None:
    exactly_once(place, tmp_path, checkpoint_format=checkpoint_format)


def test_a_savepoint_and_a_rescale(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    savepoint_and_rescale(place, spark, tmp_path)
