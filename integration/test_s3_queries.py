"""Whole queries with their state on S3, and Spark's logs in a directory.

The tests have operators, savepoints, a rescale, and a start that fails. `test_crash` has the kill
test with state on S3. MILLPOND_S3_ALL=1 runs every comparable query shape.
MILLPOND_S3_PARTITIONS=200 counts the requests of a query with 200 partitions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.cases import CLICKED, Case
from integration.harness import millponds_own, short_conf
from integration.jvm import MILLPOND, ROCKSDB
from integration.shapes import SHAPES, named
from integration.streams import Input, Run, finish, settings, start
from millpond import savepoint
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale
from millpond.storage import open_checkpoint
from tests.s3_server import HADOOP, Chooser, Fault, S3Server, s3_server

pytestmark = [pytest.mark.spark, millponds_own]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_PARTITIONS = os.environ.get("MILLPOND_S3_PARTITIONS")
# It has timers and column families, in Spark checkpoint format 2. The kill test has a join.
SAMPLE = ("scala-event-time",)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def boto(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which savepoints reach the server. They take no session options."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def on_s3(server: S3Server, uri: str) -> dict[str, str]:
    return {
        _PROVIDER: MILLPOND,
        **HADOOP,
        **short_conf(
            {"millpond.storage.uri": uri, "millpond.storage.s3.endpoint": server.endpoint}
        ),
    }


def _cases() -> list[Case]:
    if os.environ.get("MILLPOND_S3_ALL"):
        return [c for c in SHAPES if not c.refused and c.later is None]
    return [named(name) for name in SAMPLE]


@pytest.mark.deep
@pytest.mark.parametrize("case", _cases(), ids=lambda c: c.name)
def test_an_operator_with_its_state_on_s3(
    spark: SparkSession, server: S3Server, tmp_path: Path, case: Case
) -> None:
    """Each batch equals that of Spark's own store, over a restart in the middle."""
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    shared = {**case.conf, _FORMAT: str(case.checkpoint_format)}
    reference, candidate = Run(tmp_path / "reference"), Run(tmp_path / "candidate %41 ü")
    sides = [
        (reference, {_PROVIDER: ROCKSDB, _CHANGELOG: "true", **shared}),
        (
            candidate,
            {
                **on_s3(server, f"s3a://{server.bucket()}/with space/ü%20/"),
                **shared,
                **case.candidate_conf,
            },
        ),
    ]
    for files in (slice(0, case.first), slice(case.first, None)):
        for source, (_, batches) in zip(inputs, case.inputs, strict=True):
            for batch in batches[files]:
                source.add(batch)
        queries = []
        for run, conf in sides:
            frame = case.build([source.stream(spark) for source in inputs])
            queries.append(
                start(spark, frame, run, output_mode=case.mode, conf=conf, actions=case.actions)
            )
        for query, (run, _) in zip(queries, sides, strict=True):
            finish(query, run)
    assert any(reference.rows.values()), "the query wrote no rows, so the test proves nothing"
    assert candidate.rows == reference.rows
    if not case.random_keys:
        assert candidate.state == reference.state
    assert verify(open_checkpoint(str(candidate.checkpoint), server.settings()), "x").problems == []


@pytest.mark.deep
def test_sparks_state_reader_reads_every_partition(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    """It takes the folders of the Spark checkpoint for the partitions. The state is elsewhere."""
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    for rows in batches:
        source.add(rows)
    found = []
    for name, conf in (
        ("reference", {_PROVIDER: ROCKSDB}),
        ("candidate", on_s3(server, f"s3://{server.bucket()}/states")),
    ):
        run = Run(tmp_path / name)
        frame = source.stream(spark).groupBy("k").count()
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        with settings(spark, conf):
            rows_of = spark.read.format("statestore").load(str(run.checkpoint))
            found.append(sorted(map(str, rows_of.collect())))
    assert len({row for row in found[0] if "partition_id=0" not in row}) > 1
    assert found[1] == found[0]


@pytest.mark.parametrize("checkpoint_format", [1, 2] if _PARTITIONS else [2])
def test_requests_of_a_query(
    spark: SparkSession, server: S3Server, tmp_path: Path, checkpoint_format: int
) -> None:
    """A batch is one PUT for each partition. A restart reads each changelog by its name.

    Nothing lists.
    """
    partitions = int(_PARTITIONS or "4")
    jvm: Any = spark.sparkContext._jvm
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    run = Run(tmp_path / "checkpoint")
    conf = {
        **on_s3(server, f"s3://{server.bucket()}/states"),
        _FORMAT: str(checkpoint_format),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "100",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
    }
    made: list[Counter[str]] = []

    def note(batch: int) -> None:
        # Requests for format.json do not count. Stores that open at the same moment each read it,
        # and at first each tries to make it.
        made.append(
            Counter(r.operation for r in server.log if not r.path.endswith("/millpond/format.json"))
        )
        server.log.clear()

    stores = jvm.org.apache.spark.sql.execution.streaming.state.StateStore
    try:
        for _ in range(2):
            for rows in batches[:3]:
                source.add(rows)
            # End maintenance. It begins anew with the interval of the next query.
            stores.stop()
            server.log.clear()
            frame = source.stream(spark).groupBy("k").count()
            finish(start(spark, frame, run, output_mode="update", conf=conf, during=note), run)
    finally:
        stores.stop()
    commits = Counter(PUT=partitions)
    tried = Counter(GET=2, PUT=1, DELETE=1)  # the driver tries the storage before the first task
    asked = Counter(GET=1)  # each executor reads the owner before its first commit
    born = asked + Counter(PUT=1)
    restores = Counter(GET=3 * partitions)  # the changelogs
    assert made == [
        tried + born + commits,
        commits,
        commits,
        tried + restores + asked + commits,
        commits,
        commits,
    ]


@pytest.mark.deep
def test_savepoints_and_a_rescale_on_s3(
    spark: SparkSession, server: S3Server, boto: None, tmp_path: Path
) -> None:
    """A query saves its state on S3, rescales and goes on.

    A restored query and a forked query write the same rows.
    """
    case = named("agg-update-odd-keys")
    bucket = server.bucket()
    uri = f"s3://{bucket}/states"
    conf = {**on_s3(server, uri), _FORMAT: str(case.checkpoint_format), **case.conf}
    schema, batches = case.inputs[0]
    source = Input(tmp_path / "input", schema)
    run = Run(tmp_path / "run")

    def go_on(into: Run) -> Run:
        frame = case.build([source.stream(spark)])
        finish(start(spark, frame, into, output_mode=case.mode, conf=conf), into)
        return into

    for rows in batches[:3]:
        source.add(rows)
    go_on(run)
    saved = f"s3://{bucket}/saved/first"
    savepoint.create(run.checkpoint, saved)
    assert savepoint.verify(saved).ok
    savepoint.fork(run.checkpoint, tmp_path / "fork", storage_uri=uri)
    savepoint.restore(saved, tmp_path / "restored", storage_uri=uri)
    storage = open_checkpoint(str(run.checkpoint), server.settings())
    assert rescale(storage, str(run.checkpoint), 4).partitions == 4
    before = set(run.rows)
    for rows in batches[3:]:
        source.add(rows)
    go_on(run)
    after = {batch: rows for batch, rows in run.rows.items() if batch not in before}
    assert any(after.values()), "no rows came after the savepoint, so the test proves nothing"
    for name in ("fork", "restored"):
        other = go_on(Run(tmp_path / name))
        # The rescale took one batch number.
        assert list(other.rows.values()) == list(after.values()), name
        assert not list((tmp_path / name / "state").rglob("*.changelog"))
    assert verify(storage, "x").problems == []


def refuse(operation: str, fault: Fault) -> Chooser:
    return lambda request: fault if request.operation == operation else None


def test_a_query_that_cannot_keep_its_state_ends_before_its_first_task(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    """The driver's error names the failed call and the missing right.

    With the right, the same Spark checkpoint goes on.
    """
    schema, batches = CLICKED[0]
    source = Input(tmp_path / "input", schema)
    source.add(batches[0])
    run = Run(tmp_path / "checkpoint")
    jobs: list[Any] = []

    def counted(uri: str) -> None:
        query = start(
            spark,
            source.stream(spark).groupBy("k").count(),
            run,
            output_mode="update",
            conf=on_s3(server, uri),
        )
        try:
            finish(query, run)
        finally:
            jobs.append(
                list(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))
            )

    with pytest.raises(
        StreamingQueryException, match=r"MILLPOND_STORAGE_BUCKET_MISSING.*no-such-bucket"
    ) as caught:
        counted("s3://no-such-bucket/states")
    assert "GetObject" in str(caught.value) and jobs == [[]]
    uri = f"s3://{server.bucket()}/states"
    for operation, fault, says in (
        (
            "PUT",
            Fault(403, "AccessDenied"),
            "MILLPOND_STORAGE_DENIED.*PutObject.*Grant s3:PutObject on",
        ),
        (
            "GET",
            Fault(301, "PermanentRedirect"),
            "MILLPOND_STORAGE_MISCONFIGURED.*GetObject.*storage.s3.region",
        ),
        (
            "GET",
            Fault(400, "AuthorizationHeaderMalformed", headers=(("x-amz-bucket-region", "eu-1"),)),
            "MILLPOND_STORAGE_MISCONFIGURED.*GetObject.*storage.s3.region to eu-1",
        ),
        (
            "GET",
            Fault(400, "ExpiredToken"),
            "MILLPOND_STORAGE_DENIED.*GetObject: ExpiredToken.*fs.s3a.session.token",
        ),
        ("GET", Fault(200, html=True), "MILLPOND_STORAGE_MISCONFIGURED.*storage.s3.endpoint"),
    ):
        with (
            server.faults(refuse(operation, fault)),
            pytest.raises(StreamingQueryException, match=says),
        ):
            counted(uri)
    with pytest.raises(StreamingQueryException, match="MILLPOND_INVALID_ARGUMENT"):
        counted(f"s3://{server.bucket()}/{'long/' * 200}")
    counted(uri)
    assert any(run.rows.values()) and jobs.pop() and not any(jobs)
