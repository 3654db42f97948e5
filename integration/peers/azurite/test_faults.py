"""What a query says when Azurite refuses it or does not answer.

Hadoop keeps a container's client for as long as the session, so each test has a container.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.peers.azurite.server import HOST, Azurite
from integration.peers.refusals import Query

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_numbers = itertools.count()
_EXPIRED = (
    "sv=2021-06-08&ss=b&srt=sco&sp=rwdlac&st=2019-01-01T00:00:00Z&se=2020-01-01T00:00:00Z"
    "&spr=https,http&sig=AAAA"
)


@pytest.fixture(params=["auto", "hadoop"])
def client(request: pytest.FixtureRequest) -> str:
    """Who moves the files: the agent by obstore, or ABFS in the job's JVM."""
    found: str = request.param
    return found


@pytest.fixture
def container(azurite: Azurite) -> str:
    """The name of a container."""
    name = f"faults-{next(_numbers)}"
    azurite.make(name)
    return name


@pytest.fixture
def query(
    spark: SparkSession, azurite: Azurite, tmp_path: Path, client: str, container: str
) -> Query:
    return _query(spark, azurite, tmp_path, client, container)


def _query(spark: SparkSession, azurite: Azurite, work: Path, client: str, container: str) -> Query:
    uri = f"{azurite.container(container)}/states"
    options = {"storage.azure.client": client}
    return Query(spark, uri, azurite.hadoop, work, names=(container,), options=options)


@pytest.mark.sample
def test_a_wrong_key(query: Query, azurite: Azurite) -> None:
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        azurite.endpoint,
        "fs.azure.account.key",
        hadoop={f"fs.azure.account.key.{HOST}": base64.b64encode(b"another key").decode()},
    )
    query.goes_on()


def test_no_key(query: Query) -> None:
    query.refused(
        "MILLPOND_STORAGE_DENIED", "fs.azure.account.key", without=f"fs.azure.account.key.{HOST}"
    )


def test_a_token_that_has_expired(query: Query, azurite: Azurite) -> None:
    query.refused(
        "MILLPOND_STORAGE_DENIED",
        azurite.endpoint,
        "A token may have expired",
        without=f"fs.azure.account.key.{HOST}",
        hadoop={
            f"fs.azure.account.auth.type.{HOST}": "SAS",
            f"fs.azure.sas.fixed.token.{HOST}": _EXPIRED,
        },
    )


def test_no_container(spark: SparkSession, azurite: Azurite, tmp_path: Path, client: str) -> None:
    query = _query(spark, azurite, tmp_path, client, f"faults-{next(_numbers)}")
    query.refused(
        "MILLPOND_STORAGE_BUCKET_MISSING",
        azurite.endpoint,
        "container does not exist",
        hadoop={"fs.azure.createRemoteFileSystemDuringInitialization": "false"},
    )


def test_a_server_that_is_down(query: Query, down: Azurite, client: str, container: str) -> None:
    says = {"auto": "error sending request", "hadoop": "Connection refused"}[client]
    query.refused("MILLPOND_STORAGE_UNAVAILABLE", says, "this host reaches it")
    down.start()
    down.make(container)  # the emulator wrote it down too late
    query.goes_on()


@pytest.fixture
def down(azurite: Azurite, query: Query) -> Iterator[Azurite]:
    """The service, killed. Afterwards it runs."""
    azurite.kill()
    yield azurite
    if not azurite.runs():
        azurite.start()
