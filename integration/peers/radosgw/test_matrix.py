"""Ceph's gateway as a place: the tests of all storages. Spark's logs are in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.peers.growing import growing_changelog
from integration.peers.matrix import Place, PlaceContract, PlaceQueries, large_objects, note
from millpond.storage import Storage, open_checkpoint
from tests.s3_server import HADOOP, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_MILLPOND = "spark.sql.streaming.stateStore.millpond."


@pytest.fixture
def place(gateway: S3Server, boto: None) -> Place:
    """The state is in a bucket of the test."""
    root = f"s3://{gateway.bucket()}/with space/ü%20"

    def open_there(uri: str) -> Storage:
        return open_checkpoint(uri, gateway.settings())

    return Place(
        storage="Ceph's radosgw",
        door="boto3",
        root=root,
        conf={
            f"{_MILLPOND}storage.uri": f"{root}/states",
            f"{_MILLPOND}storage.s3.endpoint": gateway.endpoint,
        },
        hadoop=HADOOP,
        state_only=True,
        open=open_there,
    )


class TestContract(PlaceContract):
    pass


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    note(place, "creates_once", "replaces_whole", "lists_at_once", "copies_itself")


def test_large_objects(gateway: S3Server, tmp_path: Path) -> None:
    """The gateway of Ceph 16 ignores the condition on a large object's end. Millpond refuses a
    second object of its name nevertheless.
    """
    large_objects(gateway, tmp_path)


def test_a_changelog_that_grows(gateway: S3Server, tmp_path: Path) -> None:
    growing_changelog(gateway, tmp_path)


class TestQueries(PlaceQueries):
    pass
