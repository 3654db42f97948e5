"""Each command reaches its storages by the options that it is given, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millpond
from integration.cases import EVENTS, events
from integration.jvm import MILLPOND
from integration.peers.commands import every_command
from integration.peers.loopback import free_port
from integration.peers.matrix import Place
from integration.streams import Input, Run, finish, settings, start
from millpond.config import PREFIX
from millpond.errors import InvalidInputError
from millpond.format import layout
from millpond.storage import open_storage
from millpond.storage.given import NOTHING, given
from millpond.storage.place import read_place
from tests.s3_server import HADOOP, S3Server, environment, s3_server

pytestmark = pytest.mark.spark

_ON_MILLPOND = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}


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


@pytest.mark.parametrize("by", ["options", "fs.s3a"])
def test_the_running_query_says_how(
    spark: SparkSession, server: S3Server, tmp_path: Path, by: str
) -> None:
    """`stop_with_savepoint` and `rescale_query` reach what the query's session reaches."""
    bucket = server.bucket()
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("a", 1.0, 1), ("b", 2.0, 1)))
    reach = {
        "options": {f"{PREFIX}storage.s3.endpoint": server.endpoint},
        "fs.s3a": {
            "fs.s3a.endpoint": server.endpoint,
            "fs.s3a.encryption.algorithm": "SSE-KMS",
            "fs.s3a.encryption.key": "the-key",
        },
    }[by]
    conf = {
        **_ON_MILLPOND,
        "spark.sql.shuffle.partitions": "2",
        f"{PREFIX}storage.uri": f"s3://{bucket}/states",
        **reach,
        **HADOOP,
    }
    counts = source.stream(spark).groupBy("k").count()
    writer = counts.writeStream.outputMode("update").format("noop")
    with settings(spark, conf):
        begin = writer.option("checkpointLocation", str(tmp_path / "run")).start
        query = begin()
        query.processAllAvailable()
        done = millpond.rescale_query(begin, query, partitions=4)
        assert done.report is not None and done.report.partitions == 4, done.refused
        done.query.processAllAvailable()
        saved = millpond.stop_with_savepoint(done.query, f"s3://{bucket}/saved")
    options = {"storage.s3.endpoint": server.endpoint}
    assert millpond.savepoint.show(saved.savepoint, options=options).index.image.partitions == 4
    found = millpond.read_state(saved.savepoint, options=options)
    assert sorted(row["k"] for row in found.column("key").to_pylist()) == ["a", "b"]
    index = server.client().head_object(Bucket=bucket, Key=f"saved/{layout.SAVEPOINT_KEY}")
    assert index.get("SSEKMSKeyId", "").endswith("the-key") == (by == "fs.s3a")


def _counted(spark: SparkSession, tmp_path: Path) -> Run:
    source, run = Input(tmp_path / "input", EVENTS), Run(tmp_path / "run")
    source.add(events(("a", 1.0, 1)))
    frame = source.stream(spark).groupBy("k").count()
    finish(start(spark, frame, run, output_mode="update", conf=_ON_MILLPOND), run)
    return run


def test_code_of_the_user_reaches_what_it_wants(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    """The options of a command are for what the command opens."""
    root = f"s3://{server.bucket()}"
    seen = []

    def job() -> DataFrame:
        seen.append(given())
        rows = spark.readStream.format("rate").load()
        return rows.groupBy("value").count()

    def change(rows: Any) -> Any:
        seen.append(given())
        return rows

    run = _counted(spark, tmp_path)
    options = {"storage.s3.endpoint": server.endpoint}
    saved = f"{root}/saved"
    millpond.savepoint.create(run.checkpoint, saved, options=options)
    millpond.savepoint.edit(saved, f"{root}/edited", function=change, options=options)
    with settings(spark, _ON_MILLPOND):
        millpond.savepoint.plan(saved, job, options=options)
    assert seen and set(map(id, seen)) == {id(NOTHING)}


def test_where_the_new_state_goes(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    run = _counted(spark, tmp_path)
    place = f"s3://{server.bucket()}/states"
    options = {"storage.s3.endpoint": server.endpoint, "storage.uri": place}
    millpond.fork(run.checkpoint, tmp_path / "forked", options=options)
    assert not list((tmp_path / "forked").rglob("*.changelog"))
    assert (read_place(open_storage(str(tmp_path / "forked"))) or "").startswith(f"{place}/")
    with pytest.raises(InvalidInputError, match=r"storage\.uri") as caught:
        millpond.adopt(run.checkpoint, tmp_path / "adopted", options=options)
    assert "--storage-uri" in caught.value.hint and not (tmp_path / "adopted").exists()
