"""Ceph's S3 gateway: the storage contract, and whole queries.

`pytest -m radosgw integration/test_radosgw.py` runs it. `radosgw.sh` starts the gateway.
MILLPOND_RADOSGW names a directory that keeps the programs for the next run.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration import test_s3_queries as queries
from integration.shapes import named
from integration.test_s3_queries import boto
from millpond.config import MIB
from millpond.errors import ConflictError
from millpond.storage import Storage
from millpond.testing.storage_contract import StorageContract
from tests.s3_server import S3Server

__all__ = ["boto"]  # a fixture

pytestmark = pytest.mark.radosgw


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory = Path(os.environ.get("MILLPOND_RADOSGW") or tmp_path_factory.mktemp("radosgw"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(__file__).with_name("radosgw.sh")), str(directory), str(port)]
    with (directory / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said == "ready\n", (said, (directory / "log").read_text())
            yield S3Server(endpoint=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


class TestRadosgw(StorageContract):
    @pytest.fixture
    def storage(self, server: S3Server) -> Storage:
        return server.storage(server.bucket(), "the checkpoint % of äö")


@pytest.fixture
def large(server: S3Server) -> Callable[..., Any]:
    bucket = server.bucket()
    return lambda **changes: server.storage(
        bucket, multipart_bytes=5 * MIB, part_bytes=5 * MIB, **changes
    )


def test_large_objects(large: Callable[..., Any], tmp_path: Path) -> None:
    """A large object goes up and comes down in parts. The storage refuses a second of its name.

    It refuses although the gateway of Ceph 16 ignores the condition.
    """
    body = os.urandom(17 * MIB)
    (tmp_path / "file").write_bytes(body)
    storage = large()
    storage.put_file("x.sst", str(tmp_path / "file"), if_absent=True)
    storage.get_to_file("x.sst", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == body
    for conditional in (True, False):
        with pytest.raises(ConflictError):
            large(conditional_put=conditional).put_file(
                "x.sst", str(tmp_path / "file"), if_absent=True
            )


@pytest.mark.spark
def test_an_operator(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    queries.test_an_operator_with_its_state_on_s3(spark, server, tmp_path, named("join-full"))


@pytest.mark.spark
def test_savepoints_and_a_rescale(
    spark: SparkSession, server: S3Server, boto: None, tmp_path: Path
) -> None:
    queries.test_savepoints_and_a_rescale_on_s3(spark, server, boto, tmp_path)
