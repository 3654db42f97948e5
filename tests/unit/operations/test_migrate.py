"""`adopt` and `release`, as far as they need no JVM.

The tests check what Millpond asks of the JVM, what Spark's logs say afterwards, and what is
refused.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.cli.main import main
from millpond.errors import ErrorKind, FormatError, InternalError, MillpondError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.operations.migrate import jvm, migrate, plan
from millpond.operations.migrate.plan import HDFS, PROVIDERS, ROCKSDB, Side
from millpond.query.from_checkpoint import spark_image
from millpond.query.image import Image
from millpond.spark import heartbeats
from millpond.spark.commands import at_work
from millpond.spark.session import PROVIDER_CLASS
from millpond.storage import open_storage
from tests.checkpoints import CheckpointBuilder, tree
from tests.row_checkpoints import RowsBuilder


def foreign(
    root: Path, *, provider: str = PROVIDERS[ROCKSDB], spark_format: int = 1
) -> CheckpointBuilder:
    """Make a Spark checkpoint of another provider.

    It has Spark's logs, and files of state that no test reads.
    """
    builder = RowsBuilder(root, provider=provider, spark_format=spark_format)
    builder.spark_logs(4)
    shutil.rmtree(root / layout.MILLPOND_DIR)
    for partition in range(builder.partitions):
        (root / f"state/0/{partition}").mkdir(exist_ok=True)
        (root / f"state/0/{partition}/4.zip").write_bytes(b"")
    return builder


def image_of(builder: CheckpointBuilder) -> Image:
    return spark_image(open_storage(str(builder.root)), str(builder.root))


def test_request_names_every_store_at_its_version(tmp_path: Path) -> None:
    builder = foreign(tmp_path / "old", spark_format=2)
    image = image_of(builder)
    asked = plan.request(
        image,
        Side(provider=PROVIDERS[ROCKSDB], root=str(builder.root), conf={}),
        Side(provider=PROVIDER_CLASS, root=str(tmp_path / "new"), conf={"a": "b"}),
        threads=2,
        spark_conf={},
    )
    assert [(s["operator"], s["partition"], s["store"], s["version"]) for s in asked["stores"]] == [
        (0, 0, "default", 4),
        (0, 1, "default", 4),
    ]
    assert [s["id"] for s in asked["stores"]] == [store.id for store in image.operators[0].stores]
    assert asked["source"]["root"] == f"file:{builder.root}/state" and asked["source"]["load_empty"]
    assert asked["target"]["conf"] == {"a": "b"}
    (family,) = asked["stores"][0]["families"]
    assert json.loads(family["key"])["fields"][0]["name"] == "k" and not family["multi"]
    assert "spark.sql.streaming.stateStore.providerClass" not in asked["conf"]


@pytest.mark.parametrize(
    ("provider", "version"), [(PROVIDERS[ROCKSDB], "v2"), (PROVIDERS[HDFS], "v1")]
)
def test_logs_of_the_new_query(tmp_path: Path, provider: str, version: str) -> None:
    image = image_of(RowsBuilder(tmp_path / "old", spark_format=2).build(4, snapshots=()))
    ids = {(0, partition, "default"): f"new-{partition}" for partition in range(2)}
    moved = plan.image_for(image, provider, ids)
    assert layout.FORMAT_KEY not in moved.texts
    for batch in (2, 3):
        conf = json.loads(moved.texts[spark_names.offsets_key(batch)].split(b"\n")[1])["conf"]
        assert conf["spark.sql.streaming.stateStore.providerClass"] == provider
        assert conf["spark.sql.shuffle.partitions"] == "2"
    head, body = moved.texts[spark_names.commits_key(3)].decode().split("\n")
    assert head == version
    expected = {"0": [["new-0"], ["new-1"]]} if version == "v2" else None
    assert json.loads(body).get("stateUniqueIds") == expected
    assert [key for key in moved.texts if key.startswith("state/")] == [
        key for key in image.texts if key.startswith("state/")
    ]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = RowsBuilder(tmp_path / "old").build()
    before = tree(tmp_path)
    command = ["release", str(builder.root), str(tmp_path / "new"), "--provider", "rocksdb"]
    assert main([*command, "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["provider_before"], report["provider"], report["batch"]) == (
        PROVIDER_CLASS,
        ROCKSDB,
        5,
    )
    assert (report["rows"], report["stores"], report["dry_run"]) == (-1, 2, True)
    assert tree(tmp_path) == before


def test_json_is_what_the_guide_lists(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = RowsBuilder(tmp_path / "job").build()
    arguments = [
        "release",
        str(builder.root),
        str(tmp_path / "back"),
        "--provider",
        "hdfs",
        "--dry-run",
        "--json",
    ]
    assert main(arguments) == 0
    fields = set(json.loads(capsys.readouterr().out))
    guide = (repository / "docs/guides/migrating.md").read_text()
    assert [field for field in sorted(fields) if f"`{field}`" not in guide] == []


@pytest.mark.parametrize(
    ("provider", "kind", "says"),
    [
        (PROVIDER_CLASS, ErrorKind.INVALID_ARGUMENT, "in Millpond already"),
        ("com.example.Provider", ErrorKind.UNSUPPORTED, "com.example.Provider"),
    ],
)
def test_what_cannot_be_adopted(tmp_path: Path, provider: str, kind: ErrorKind, says: str) -> None:
    builder = foreign(tmp_path / "old", provider=provider)
    before = tree(tmp_path)
    with pytest.raises(MillpondError, match=says) as error:
        millpond.adopt(builder.root, tmp_path / "new")
    assert error.value.kind is kind
    assert tree(tmp_path) == before


def test_adopt_notices_a_batch_that_comes_while_it_reads_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = foreign(tmp_path / "old")

    def read(*given: Any) -> Image:
        image = spark_image(*given)
        for key in (spark_names.offsets_key, spark_names.commits_key):
            builder.storage.put_bytes(key(4), builder.storage.read(key(3)))
        return image

    monkeypatch.setattr(migrate, "spark_image", read)
    monkeypatch.setattr(migrate, "running_class", lambda name: None)
    monkeypatch.setattr(migrate, "command", lambda *given: ["copier"])
    monkeypatch.setattr(jvm, "answers", lambda *given: iter(()))
    with pytest.raises(MillpondError) as refused:
        millpond.adopt(builder.root, tmp_path / "new")
    assert refused.value.kind is ErrorKind.QUERY_RUNNING
    assert not (tmp_path / "new").exists()


def test_release_refuses_a_query_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries of one id would go on. A trial has an id of its own."""
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    builder = RowsBuilder(tmp_path / "old").build()
    beat = builder.root / "millpond/running/run-1.json"
    beat.parent.mkdir(parents=True)
    beat.write_text(json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 60_000}))
    with pytest.raises(MillpondError) as refused:
        millpond.release(builder.root, tmp_path / "new", provider=ROCKSDB)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING
    assert "--new-query-id" in refused.value.hint
    assert not (tmp_path / "new").exists()
    for trial in (False, True):
        assert millpond.release(
            builder.root, tmp_path / "new", provider=ROCKSDB, new_query_id=trial, dry_run=True
        ).dry_run


def copied_beside(
    monkeypatch: pytest.MonkeyPatch, builder: CheckpointBuilder, work: Callable[[], object]
) -> None:
    """Let no JVM copy the stores, and `work` happen meanwhile."""

    def copy(*given: Any) -> Iterator[dict[str, Any]]:
        work()
        return iter(
            {"operator": 0, "partition": partition, "store": "default", "rows": 1, "id": "a"}
            for partition in range(builder.partitions)
        )

    monkeypatch.setattr(migrate, "running_class", lambda name: None)
    monkeypatch.setattr(migrate, "command", lambda *given: ["copier"])
    monkeypatch.setattr(jvm, "answers", copy)


def test_release_notices_a_run_that_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a schedule has no heartbeat before it, and none after it. Its batch would be done
    once more by the query that is released.
    """
    builder = RowsBuilder(tmp_path / "old", spark_format=2).build()

    def run() -> None:
        for key in (spark_names.offsets_key, spark_names.commits_key):
            builder.storage.put_bytes(key(6), builder.storage.read(key(5)))

    copied_beside(monkeypatch, builder, run)
    with pytest.raises(MillpondError) as refused:
        millpond.release(builder.root, tmp_path / "new", provider=ROCKSDB)
    assert refused.value.kind is ErrorKind.QUERY_RUNNING
    assert not (tmp_path / "new").exists()
    (builder.root / "offsets/6").unlink()
    (builder.root / "commits/6").unlink()
    millpond.release(builder.root, tmp_path / "trial", provider=ROCKSDB, new_query_id=True)


@pytest.mark.parametrize("new_query_id", [False, True])
def test_release_notices_an_erasure_that_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_query_id: bool
) -> None:
    """Some stores were copied before it, and others afterwards or in between."""
    builder = RowsBuilder(tmp_path / "old", spark_format=2).build(snapshots=())

    copied_beside(monkeypatch, builder, lambda: millpond.erase([builder.root], key={"k": 1}))
    with pytest.raises(MillpondError) as refused:
        millpond.release(
            builder.root, tmp_path / "new", provider=ROCKSDB, new_query_id=new_query_id
        )
    assert refused.value.kind is ErrorKind.ERASE_UNFINISHED
    assert not (tmp_path / "new").exists()


def test_release_says_which_a_command_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescale at work is no second query: there is nothing to make a trial of."""
    monkeypatch.setattr(heartbeats, "_ENDING_S", 0.0)
    builder = RowsBuilder(tmp_path / "old").build()
    with at_work(builder.storage, "it", "rescale"), pytest.raises(MillpondError) as refused:
        millpond.release(builder.root, tmp_path / "new", provider=ROCKSDB)
    assert refused.value.kind is ErrorKind.COMMAND_RUNNING
    assert "another command" in str(refused.value) and "Two queries" not in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_bad_input(tmp_path: Path) -> None:
    builder = foreign(tmp_path / "old")
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").write_text("mine")
    calls: list[tuple[dict[str, Any], ErrorKind]] = [
        ({"checkpoint": builder.root, "new_checkpoint": used}, ErrorKind.TARGET_NOT_EMPTY),
        (
            {"checkpoint": builder.root, "new_checkpoint": builder.root / "in"},
            ErrorKind.INVALID_ARGUMENT,
        ),
        (
            {"checkpoint": tmp_path / "none", "new_checkpoint": tmp_path / "new"},
            ErrorKind.NOT_A_CHECKPOINT,
        ),
        (
            {"checkpoint": builder.root, "new_checkpoint": tmp_path / "new", "batch": 9},
            ErrorKind.BATCH_NOT_COMMITTED,
        ),
    ]
    before = tree(tmp_path)
    for arguments, kind in calls:
        with pytest.raises(MillpondError) as error:
            millpond.adopt(**arguments)
        assert error.value.kind is kind
    with pytest.raises(UnsupportedError) as foreign_one:
        millpond.release(builder.root, tmp_path / "new", provider=ROCKSDB)
    assert foreign_one.value.kind is ErrorKind.FOREIGN_CHECKPOINT
    with pytest.raises(MillpondError, match="neither"):
        millpond.release(builder.root, tmp_path / "new", provider="redis")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "cls", "says"),
    [
        ({"kind": "CHANGELOG_DAMAGED", "message": "[MILLPOND_CHANGELOG_DAMAGED] it is. Hint: x", "hint": "y"}, FormatError, "^it is. Hint: y$"),
        ({"condition": "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS", "message": "gone"}, FormatError, "gone"),
        ({"message": "ClassNotFoundException: Class org.apache.hadoop.fs.X not found"}, UnsupportedError, "SPARK_DIST_CLASSPATH"),
        ({"message": "NullPointerException: null"}, InternalError, "NullPointerException"),
    ],
)  # fmt: skip
def test_errors_of_the_jvm(line: dict[str, str], cls: type[MillpondError], says: str) -> None:
    answer = json.dumps({"error": line})
    with pytest.raises(cls, match=says):
        list(jvm.answers([sys.executable, "-c", f"print('{{}}'); print({answer!r}); input()"], {}))


def test_a_jvm_that_dies(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"exit code 7.*no room"):
        list(
            jvm.answers(
                [sys.executable, "-c", "import sys; sys.stderr.write('no room'); sys.exit(7)"], {}
            )
        )
