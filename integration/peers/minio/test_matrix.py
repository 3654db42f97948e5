"""MinIO as a place: the tests of all storages.

Millpond's state always goes by boto3. Spark's own logs stay in a directory, or go by Hadoop's s3a
to the same bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.jvm import SPARK_JARS
from integration.peers.growing import growing_changelog
from integration.peers.matrix import Place, PlaceContract, PlaceQueries, large_objects, note
from integration.peers.minio import parts
from integration.peers.minio.server import Minio
from millpond.storage import Storage, open_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_MILLPOND = "spark.sql.streaming.stateStore.millpond."


@pytest.fixture
def state(minio: Minio, boto: None) -> Place:
    """The state is in a bucket of the test, and Spark's logs are in a directory."""
    root = f"s3://{minio.bucket()}/with space/ü%20"
    return Place(
        storage="MinIO",
        door="boto3",
        root=root,
        conf={
            f"{_MILLPOND}storage.uri": f"{root}/states",
            f"{_MILLPOND}storage.s3.endpoint": minio.endpoint,
        },
        hadoop=minio.hadoop,
        state_only=True,
        open=_open(minio),
    )


@pytest.fixture
def whole(minio: Minio, boto: None) -> Place:
    """The Spark checkpoint is in a bucket of the test. s3a's settings are all that reaches it."""
    return Place(
        storage="MinIO",
        door="s3a and boto3",
        root=f"s3a://{minio.bucket()}/checkpoints",
        hadoop=minio.hadoop,
        jars=parts.s3a(),
        open=_open(minio),
    )


@pytest.fixture(params=["state", "whole"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def _open(minio: Minio) -> Callable[[str], Storage]:
    return lambda root: open_checkpoint(root, minio.settings())


def test_s3a_is_of_the_release_of_sparks_client() -> None:
    (client,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    assert client.name == f"hadoop-client-api-{parts.versions()['hadoop-aws']}.jar"


class TestContract(PlaceContract):
    @pytest.fixture
    def place(self, state: Place) -> Place:
        return state


@pytest.mark.sample
def test_what_it_can_do(state: Place) -> None:
    note(state, "creates_once", "replaces_whole", "lists_at_once", "copies_itself")


def test_large_objects(minio: Minio, tmp_path: Path) -> None:
    """A large object goes up and comes down in parts. The server refuses a second of its name."""
    large_objects(minio, tmp_path)


def test_a_changelog_that_grows(minio: Minio, tmp_path: Path) -> None:
    """The server lists uploads of one object only. It throws away what nobody finishes by itself,
    a day later.
    """
    growing_changelog(minio, tmp_path, lists_by_prefix=False)


class TestQueries(PlaceQueries):
    def kills(self, place: Place) -> int:
        """Spark makes a client of s3a for each of its logs, so each start of a whole job takes
        long.
        """
        return 2 if place.state_only else 1
