"""State on S3, by HTTP to a server on loopback. Spark's own logs stay on a file system.

The tests use single stores and a whole query.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.cases import CLICKS, EVENTS
from integration.harness import Harness, Provider, ProviderError, Schema, millponds_own, short_conf
from integration.jvm import MILLPOND, ROCKSDB
from integration.store_model import as_state, write_spark_metadata
from integration.streams import Input, Run, finish, settings, start
from millpond.format import layout
from millpond.operations.inspect import verify
from millpond.storage import open_checkpoint, open_storage
from tests.s3_server import HADOOP, Chooser, Fault, Request, S3Server, s3_server

pytestmark = [pytest.mark.spark, millponds_own]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def conf_of(server: S3Server, bucket: str) -> dict[str, str]:
    return short_conf(
        {
            "millpond.storage.uri": f"s3://{bucket}/states",
            "millpond.storage.s3.endpoint": server.endpoint,
        }
    )


def opener(
    harness: Harness, server: S3Server, bucket: str, checkpoint: Path, **conf: int
) -> Callable[[], Provider]:
    """Return what opens the store of a query with one partition and its state in `bucket`."""
    root = write_spark_metadata(
        checkpoint, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
    )
    (checkpoint / "metadata").write_text('{"id":"the-query"}')
    whole = {**conf_of(server, bucket), **short_conf(conf), "spark.sql.shuffle.partitions": "1"}
    return lambda: harness.open(
        root, provider_class=MILLPOND, schema=Schema(), conf=whole, hadoop=HADOOP
    )


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_store(
    harness: Harness, server: S3Server, tmp_path: Path, checkpoint_format: int
) -> None:
    """A commit is one PUT. A restore lists nothing. Local copies go when the disk tier has them."""
    bucket = server.bucket()
    opened = opener(
        harness,
        server,
        bucket,
        tmp_path / "checkpoint",
        checkpointFormatVersion=checkpoint_format,
        minDeltasForSnapshot=2,
    )

    def staged() -> int:
        return len(list(harness.local_dir.glob("millpond-*/0-0-default-*/g*/staging/.staging-*")))

    before = staged()
    provider = opened()
    version, commit_id = 0, None
    for i in range(5):
        store = provider.store(version, commit_id)
        store.put(["a", i], ["x" * i, i])
        server.counts.clear()
        done = store.commit()
        # The first commit claims the state for this Spark checkpoint, by a GET and a PUT if absent.
        # In format 1 it also writes the operator's record.
        assert dict(server.counts) == (
            {"PUT": 1} if i > 0 else {"PUT": 4 - checkpoint_format, "GET": 1}
        )
        version, commit_id = done.version, done.id
    assert staged() == before + 5
    provider.snapshot()
    assert staged() == before + 1, (
        "only the copy of the last version may stay: it is not proven committed"
    )
    store = provider.store(version, commit_id)
    store.put(["b", 0], ["y", 0])
    state = as_state(store.scan())
    done = store.commit()
    version, commit_id = done.version, done.id
    used = store.metrics()["custom"]
    assert used["millpondStoragePutRequests"] >= 1 and used["millpondStorageSentBytes"] > 0
    provider.close()

    reader = opened()
    server.counts.clear()
    again = reader.store(version, commit_id)
    # The GETs are two changelogs, the manifest below them, and format.json. The SST is in the
    # host's cache.
    assert dict(server.counts) == {"GET": 4}
    assert as_state(again.scan()) == state and len(state) == 6
    again.abort()
    reader.close()
    keys = [info.key for info in open_storage(f"s3://{bucket}", server.settings()).list("")]
    assert all(key.startswith("states/the-query/") for key in keys)
    record = (
        {f"states/the-query/{layout.operator_record_key(0)}"} if checkpoint_format == 1 else set()
    )
    assert sorted({Path(key).suffix for key in set(keys) - record}) == [
        ".changelog",
        ".json",
        ".manifest",
        ".sst",
    ]
    assert record <= set(keys)
    assert not [
        path
        for path in (tmp_path / "checkpoint/state/0").rglob("*")
        if path.is_file() and "_metadata" not in str(path)
    ]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(404, "NoSuchBucket"), "STORAGE_BUCKET_MISSING"),
        (Fault(403, "AccessDenied"), "STORAGE_DENIED"),
    ],
)
def test_a_refusal(
    harness: Harness, server: S3Server, tmp_path: Path, fault: Fault, kind: str
) -> None:
    root = write_spark_metadata(
        tmp_path / "checkpoint",
        operator_name="stateStoreSave",
        partitions=1,
        provider_class=MILLPOND,
    )
    (tmp_path / "checkpoint/metadata").write_text('{"id":"the-query"}')
    provider = harness.open(
        root,
        provider_class=MILLPOND,
        schema=Schema(),
        conf=conf_of(server, server.bucket()),
        hadoop=HADOOP,
    )
    with server.faults(lambda _: fault), pytest.raises(Exception, match=f"MILLPOND_{kind}"):
        provider.store(0)
    provider.close()


def faults(seed: int) -> Chooser:
    """Let one request in thirty go wrong.

    The connection breaks before, in or after the body, or the server is busy or slow.
    """
    chance = random.Random(seed)

    def choose(request: Request) -> Fault | None:
        if chance.random() >= 1 / 30:
            return None
        kinds = [
            Fault(),
            Fault(applied=True),
            Fault(503, "SlowDown"),
            Fault(500, "InternalError"),
            Fault(200, late_s=0.1),
        ]
        if request.operation == "GET":
            kinds += [Fault(cut=5), Fault(flip=True)]
        return chance.choice(kinds)

    return choose


def test_a_query(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    """The query writes the same rows as on Spark's RocksDB store, over a failure and a restart.

    The server fails now and then.
    """
    bucket = server.bucket()
    source = Input(tmp_path / "input", EVENTS)
    for rows in CLICKS:
        source.add(rows)

    def frame() -> DataFrame:
        return (
            source.stream(spark)
            .withWatermark("ts", "10 seconds")
            .groupBy(F.window("ts", "10 seconds"), "k")
            .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
        )

    def run(name: str, conf: Mapping[str, str]) -> Run:
        result = Run(tmp_path / name)
        for fail_at in (2, None):
            query = start(spark, frame(), result, output_mode="update", conf=conf, fail_at=fail_at)
            finish(query, result, fails=fail_at is not None)
        return result

    format2 = short_conf(
        {"checkpointFormatVersion": 2, "rocksdb.changelogCheckpointing.enabled": True}
    )
    provider = "spark.sql.streaming.stateStore.providerClass"
    expected = run("rocksdb", {provider: ROCKSDB, **format2})
    server.counts.clear()
    with server.faults(faults(7)):
        found = run(
            "millpond", {provider: MILLPOND, **conf_of(server, bucket), **HADOOP, **format2}
        )
    assert (found.rows, found.state) == (expected.rows, expected.state)
    print(f"requests for {len(found.rows)} batches of 2 partitions: {dict(server.counts)}")

    checkpoint = open_checkpoint(str(tmp_path / "millpond"), server.settings())
    report = verify(checkpoint, "x")
    assert report.ok and report.checked.changelogs > 0, report.problems
    query_id = json.loads((tmp_path / "millpond/metadata").read_text())["id"]
    assert {
        i.key.split("/")[1] for i in open_storage(f"s3://{bucket}", server.settings()).list("")
    } == {query_id}
    # Spark's state reader finds the state without the option `storage.uri`.
    with settings(
        spark,
        {
            **short_conf({"millpond.storage.s3.endpoint": server.endpoint}),
            **HADOOP,
            provider: MILLPOND,
        },
    ):
        mine = spark.read.format("statestore").load(str(tmp_path / "millpond")).collect()
    with settings(spark, {provider: ROCKSDB, **format2}):
        sparks = spark.read.format("statestore").load(str(tmp_path / "rocksdb")).collect()
    assert sorted(map(repr, mine)) == sorted(map(repr, sparks))


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_damaged_changelog_below_a_newer_snapshot_does_not_matter(
    harness: Harness, server: S3Server, tmp_path: Path, checkpoint_format: int
) -> None:
    """The newest changelog was written before that snapshot, and does not name it."""
    bucket = server.bucket()
    opened = opener(
        harness,
        server,
        bucket,
        tmp_path / "checkpoint",
        checkpointFormatVersion=checkpoint_format,
        minDeltasForSnapshot=1,
    )

    def damage(version: int) -> None:
        """Flip a bit of the last block."""
        objects = open_storage(f"s3://{bucket}", server.settings())
        (key,) = (
            info.key
            for info in objects.list("")
            if Path(info.key).name.startswith(str(version)) and info.key.endswith(".changelog")
        )
        data = bytearray(objects.read(key))
        data[-60] ^= 1
        objects.put_bytes(key, bytes(data))

    writer = opened()
    version, commit_id = 0, None
    for i in range(4):
        store = writer.store(version, commit_id)
        store.put(["a", i], ["x" * 100, i])
        done = store.commit()
        version, commit_id = done.version, done.id
    writer.snapshot()  # of version 3
    writer.close()
    damage(2)
    reader = opened()
    assert len(reader.read_store(version, commit_id).scan()) == 4
    reader.close()
    damage(4)
    reader = opened()
    with pytest.raises(ProviderError, match="CHANGELOG_DAMAGED"):
        reader.read_store(version, commit_id)
    reader.close()
