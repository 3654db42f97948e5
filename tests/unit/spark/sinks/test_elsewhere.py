"""File sinks that are not on this machine's disk.

On S3 Millpond keeps their log as on a disk. It refuses a sink that only the job reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import spark_names
from millpond.model.key_groups import KeyGroups
from millpond.operations.rescale import rescale, undo
from tests.azure_server import know_nobody
from tests.checkpoints import CheckpointBuilder, tree
from tests.refusals import refused
from tests.s3_server import S3Server, s3_server
from tests.unit.spark.sinks.test_keeping import recorded

_GCS = "gs://bucket/out"  # whose connector Spark does not bring
_LOG = spark_names.SINK_LOG_PREFIX


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server.bucket()


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    """A query whose batches 0 to 5 are committed."""
    return CheckpointBuilder(tmp_path / "ckpt", partitions=4, groups=KeyGroups(48, 12)).build()


def log_of(server: S3Server, bucket: str, prefix: str) -> dict[str, bytes]:
    storage = server.storage(bucket, prefix)
    return {info.key.removeprefix(_LOG): storage.read(info.key) for info in storage.list(_LOG)}


def as_spark_writes(server: S3Server, bucket: str, prefix: str, last: int) -> dict[str, bytes]:
    """Write the log of a sink through batch `last`, as s3a does.

    Each directory has an empty object. A task that died left one too.
    """
    storage = server.storage(bucket, prefix)
    for marker in (f"{prefix}/", f"{prefix}/{_LOG}"):
        server.client().put_object(Bucket=bucket, Key=marker, Body=b"")
    for number in range(last + 1):
        rows = json.dumps(
            {"path": f"s3a://{bucket}/{prefix}/part-{number}", "size": 1, "action": "add"}
        )
        storage.put_bytes(f"{_LOG}{number}", f"v1\n{rows}".encode())
        storage.put_bytes(f"part-{number}", b"rows")
    storage.put_bytes(f"{_LOG}.5.0e4ad5b2.tmp", b"v1\n")
    return log_of(server, bucket, prefix)


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_a_rescale_keeps_a_log_on_s3(
    built: CheckpointBuilder, server: S3Server, bucket: str, scheme: str
) -> None:
    before = as_spark_writes(server, bucket, "a/sink", 5)
    out = f"{scheme}://{bucket}/a/sink"
    assert rescale(built.storage, "it", 8, file_sink=out).file_sink == out
    assert log_of(server, bucket, "a/sink") == {**before, "6": b"v1"}
    recorded(built, out, compact_interval=4)
    again = rescale(built.storage, "it", 4)
    assert (again.batch, again.file_sink) == (7, out)
    made = log_of(server, bucket, "a/sink")
    assert made.pop("7.compact").split(b"\n")[0] == b"v1" and made == {**before, "6": b"v1"}
    assert undo(built.storage, "it") is False


def test_a_fork_begins_a_log_on_s3(
    built: CheckpointBuilder, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    as_spark_writes(server, bucket, "sink", 5)
    recorded(built, f"s3a://{bucket}/sink")
    for same in ("s3a", "s3"):
        sink = f"{same}://{bucket}/sink/"
        mismatch = ErrorKind.FILE_SINK_MISMATCH
        refused(mismatch, savepoint.fork, built.root, tmp_path / "b", file_sink=sink)
    server.client().put_object(
        Bucket=bucket, Key="new/", Body=b""
    )  # a console makes a directory so
    assert savepoint.fork(built.root, tmp_path / "b", file_sink=f"s3a://{bucket}/new").batch == 5
    assert log_of(server, bucket, "new") == {str(number): b"v1" for number in range(6)}
    savepoint.create(built.root, tmp_path / "saved")
    server.storage(bucket, "full").put_bytes("part-0", b"rows")
    refused(
        ErrorKind.FILE_SINK_INVALID,
        savepoint.restore,
        tmp_path / "saved",
        tmp_path / "c",
        file_sink=f"s3a://{bucket}/full",
    )
    savepoint.restore(
        tmp_path / "saved", tmp_path / "c", file_sink=f"s3a://{bucket}/sink", keep_query_id=True
    )


def test_a_sink_that_only_the_job_reaches_is_refused(
    built: CheckpointBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do. It comes before a command writes anything."""
    know_nobody(monkeypatch)
    savepoint.create(built.root, tmp_path / "saved")
    recorded(built, _GCS)
    before = tree(built.root)
    for call in (
        lambda: rescale(built.storage, "it", 8),
        lambda: savepoint.fork(built.root, tmp_path / "new", file_sink=_GCS + "2"),
        lambda: savepoint.restore(tmp_path / "saved", tmp_path / "new", file_sink=_GCS),
    ):
        e = refused(ErrorKind.STORAGE_UNSUPPORTED, call)
        assert (
            "file sink" in str(e) and "--file-sink none" in e.hint and "rescale.onRestart" in e.hint
        )
        assert "Spark checkpoint" not in e.hint
    there = "abfss://c@a.dfs.core.windows.net/out"
    # Commands reach it, and nothing says who asks.
    refused(ErrorKind.STORAGE_DENIED, rescale, built.storage, "it", 8, file_sink=there)
    assert tree(built.root) == before and not (tmp_path / "new").exists()
    fork = built.root, tmp_path / "new"
    unknown = refused(ErrorKind.FILE_SINK_UNKNOWN, savepoint.fork, *fork)
    assert _GCS in str(unknown)
    assert rescale(built.storage, "it", 8, file_sink="none").file_sink is None


def test_a_sink_that_is_named_by_a_file_uri(built: CheckpointBuilder, tmp_path: Path) -> None:
    for number, root in enumerate((f"file://{tmp_path}/a b", f"file:{tmp_path}/c%20d")):
        report = savepoint.fork(built.root, tmp_path / f"fork-{number}", file_sink=root)
        assert report.file_sink == root
    assert (tmp_path / "a b/_spark_metadata/5").read_bytes() == b"v1"
