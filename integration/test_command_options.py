"""Each command reaches its storages by the options that it is given, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.cases import EVENTS, events
from integration.jvm import MILLPOND
from integration.peers.commands import every_command
from integration.peers.loopback import free_port
from integration.peers.matrix import Place
from integration.streams import Input, settings
from millpond.config import PREFIX
from tests.s3_server import HADOOP, S3Server, environment, s3_server

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_else_knows_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forgets the options finds that nobody listens."""
    for name, value in environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.mark.parametrize("by_a_jvm", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_every_command(
    spark: SparkSession, server: S3Server, tmp_path: Path, by_a_jvm: bool
) -> None:
    root = f"s3://{server.bucket()}"
    endpoint = f"storage.s3.endpoint={server.endpoint}"
    place = Place(
        storage="S3",
        door="boto3",
        root=root,
        conf={
            f"{PREFIX}storage.uri": f"{root}/states",
            f"{PREFIX}storage.s3.endpoint": server.endpoint,
        },
        hadoop=HADOOP,
        state_only=True,
    )
    options = ["-o", endpoint, "-o", "storage.deadlineMs=2000"]
    every_command(place, spark, tmp_path, by_a_jvm=by_a_jvm, options=options)


def test_the_running_query_says_how(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    """`stop_with_savepoint` and `rescale_query` take the options of the query's session."""
    root = f"s3://{server.bucket()}"
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("a", 1.0, 1), ("b", 2.0, 1)))
    conf = {
        "spark.sql.streaming.stateStore.providerClass": MILLPOND,
        "spark.sql.shuffle.partitions": "2",
        f"{PREFIX}storage.uri": f"{root}/states",
        f"{PREFIX}storage.s3.endpoint": server.endpoint,
        **HADOOP,
    }
    counts = source.stream(spark).groupBy("k").count()
    writer = counts.writeStream.outputMode("update").format("noop")
    with settings(spark, conf):
        start = writer.option("checkpointLocation", str(tmp_path / "run")).start
        query = start()
        query.processAllAvailable()
        done = millpond.rescale_query(start, query, partitions=4)
        assert done.report is not None and done.report.partitions == 4, done.refused
        done.query.processAllAvailable()
        saved = millpond.stop_with_savepoint(done.query, f"{root}/saved")
    options = {"storage.s3.endpoint": server.endpoint}
    assert millpond.savepoint.show(saved.savepoint, options=options).index.image.partitions == 4
    found = millpond.read_state(saved.savepoint, options=options)
    assert sorted(row["k"] for row in found.column("key").to_pylist()) == ["a", "b"]
