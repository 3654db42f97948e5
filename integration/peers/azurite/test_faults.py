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


@pytest.fixture
def query(spark: SparkSession, azurite: Azurite, tmp_path: Path) -> Query:
    uri = f"{azurite.container(f'faults-{next(_numbers)}')}/states"
    return Query(spark, uri, azurite.hadoop, tmp_path)


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


def test_no_container(query: Query, azurite: Azurite) -> None:
    query.refused(
        "MILLPOND_STORAGE_BUCKET_MISSING",
        azurite.endpoint,
        "container does not exist",
        hadoop={"fs.azure.createRemoteFileSystemDuringInitialization": "false"},
    )


def test_a_server_that_is_down(query: Query, down: Azurite) -> None:
    query.refused("MILLPOND_STORAGE_UNAVAILABLE", "Connection refused", "this host reaches it")
    down.start()
    query.goes_on()


@pytest.fixture
def down(azurite: Azurite, query: Query) -> Iterator[Azurite]:
    """The service, killed. Afterwards it runs."""
    azurite.kill()
    yield azurite
    if not azurite.runs():
        azurite.start()
