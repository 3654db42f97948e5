"""What a savepoint refuses: places, batches, damage. Nothing is written then."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.query.index import decode_index, encode_index
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.examples import changelog_bytes
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder


def test_no_committed_batch(built: CheckpointBuilder, tmp_path: Path) -> None:
    shutil.rmtree(built.root / "commits")
    refused(ErrorKind.FORMAT_DAMAGED, lambda: savepoint.create(built.root, tmp_path / "saved"))
    built.storage.delete(spark_names.offsets_key(batch) for batch in range(1, 6))
    refused(ErrorKind.BATCH_NOT_COMMITTED, lambda: savepoint.create(built.root, tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("batch", [-1, 6, 99])
def test_batch_that_is_not_committed(built: CheckpointBuilder, tmp_path: Path, batch: int) -> None:
    refused(
        ErrorKind.BATCH_NOT_COMMITTED,
        lambda: savepoint.create(built.root, tmp_path / "saved", batch=batch),
    )


def test_expired_batch(built: CheckpointBuilder, tmp_path: Path) -> None:
    for store in built.stores():
        built.storage.delete(
            layout.changelog_key(store, VersionId(v, version_id(store, v)), built.spark_format)
            for v in (1, 2, 3)
        )
    refused(
        ErrorKind.VERSION_EXPIRED, lambda: savepoint.create(built.root, tmp_path / "saved", batch=1)
    )
    built.storage.delete(
        key(batch) for batch in (0, 1) for key in (spark_names.offsets_key, spark_names.commits_key)
    )
    refused(
        ErrorKind.VERSION_EXPIRED, lambda: savepoint.create(built.root, tmp_path / "saved", batch=1)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["check point"]


def test_places(built: CheckpointBuilder, saved: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    refused(
        ErrorKind.NOT_A_CHECKPOINT, lambda: savepoint.create(tmp_path / "nowhere", tmp_path / "x")
    )
    refused(ErrorKind.TARGET_NOT_EMPTY, lambda: savepoint.create(built.root, saved))
    refused(ErrorKind.TARGET_NOT_EMPTY, lambda: savepoint.restore(saved, built.root))
    refused(ErrorKind.TARGET_NOT_EMPTY, lambda: savepoint.create(built.root, saved / "metadata"))
    refused(ErrorKind.INVALID_ARGUMENT, lambda: savepoint.create(built.root, built.root / "saved"))
    refused(ErrorKind.INVALID_ARGUMENT, lambda: savepoint.restore(saved, saved / "new"))
    refused(ErrorKind.NOT_A_SAVEPOINT, lambda: savepoint.show(tmp_path))
    refused(ErrorKind.NOT_A_SAVEPOINT, lambda: savepoint.restore(built.root, tmp_path / "x"))
    refused(
        ErrorKind.OPERATOR_UNKNOWN,
        lambda: savepoint.restore(saved, tmp_path / "x", map_operators={7: 1}),
    )
    refused(
        ErrorKind.INVALID_ARGUMENT, lambda: savepoint.restore(saved, tmp_path / "x", offsets="most")
    )
    assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    savepoint.create(built.root, tmp_path / "empty")
    assert savepoint.verify(tmp_path / "empty").ok


def test_a_place_that_is_a_link_is_the_place_it_leads_to(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    link, place = tmp_path / "link", tmp_path / "places/place"
    place.mkdir(parents=True)
    link.symlink_to(place)
    savepoint.create(built.root, link)
    assert link.is_symlink() and savepoint.verify(place).ok and savepoint.verify(link).ok
    refused(ErrorKind.TARGET_NOT_EMPTY, lambda: savepoint.create(built.root, link))
    savepoint.delete(link)
    assert not place.exists() and list(place.parent.iterdir()) == []
    savepoint.restore(
        savepoint.create(built.root, link).savepoint, tmp_path / "new"
    )  # the link leads nowhere now
    assert link.is_symlink() and savepoint.verify(place).ok


@pytest.mark.parametrize("inside", ["saved", "state/saved"])
def test_no_link_leads_a_savepoint_into_what_is_saved(
    built: CheckpointBuilder, tmp_path: Path, inside: str
) -> None:
    before = tree(built.root)
    (tmp_path / "into").symlink_to(built.root)
    (tmp_path / "name").symlink_to(built.root / inside)
    for command in (savepoint.create, savepoint.fork):
        for place in (tmp_path / "into" / inside, tmp_path / "name"):
            refused(ErrorKind.INVALID_ARGUMENT, command, built.root, place)
        refused(ErrorKind.INVALID_ARGUMENT, command, tmp_path / "into", built.root / inside)
    assert tree(built.root) == before


def test_foreign_checkpoint(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "check", provider="org.apache.spark.Other").build()
    (built.root / layout.FORMAT_KEY).unlink()
    refused(ErrorKind.FOREIGN_CHECKPOINT, lambda: savepoint.create(built.root, tmp_path / "saved"))


DAMAGE: list[Callable[[bytes], bytes | None]] = [
    lambda data: data[:-1],
    lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    lambda data: data + b"x",
    lambda data: None,
]


@pytest.mark.parametrize("change", DAMAGE, ids=["cut", "flipped", "longer", "missing"])
def test_damaged_savepoint(
    saved: Path, tmp_path: Path, change: Callable[[bytes], bytes | None]
) -> None:
    keys = list(tree(saved))
    chosen = [
        layout.SAVEPOINT_KEY,
        "metadata",
        *(next(k for k in keys if k.endswith(end)) for end in ("log", "est", "sst")),
    ]
    for key in chosen:
        path = saved / key
        data = path.read_bytes()
        path.unlink()  # the Spark checkpoint has a link to the same file
        changed = change(data)
        if changed is not None:
            path.write_bytes(changed)
        missing_index = changed is None and key == layout.SAVEPOINT_KEY
        kind = ErrorKind.NOT_A_SAVEPOINT if missing_index else ErrorKind.SAVEPOINT_DAMAGED
        error = refused(kind, lambda: savepoint.restore(saved, tmp_path / "new"))
        assert missing_index or key in str(error)
        if key != layout.SAVEPOINT_KEY:
            assert key in {problem.file for problem in savepoint.verify(saved).problems}
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["check point", "saved"]


def test_index_that_names_a_path_outside(saved: Path, tmp_path: Path) -> None:
    path = saved / layout.SAVEPOINT_KEY
    head, _, body = path.read_bytes().partition(b"\n")

    def write(text: bytes, version: int = 1) -> None:
        words = head.split()
        words[2:] = [str(version).encode(), b"%08x" % zlib.crc32(text), str(len(text)).encode()]
        path.write_bytes(b" ".join(words) + b"\n" + text)

    for key in ("../outside", "/etc/passwd", "state/../../x"):
        write(body.replace(b'"metadata"', json.dumps(key).encode()))
        refused(ErrorKind.UNSAFE_PATH, lambda: savepoint.restore(saved, tmp_path / "new"))
    write(body, version=2)
    refused(ErrorKind.FORMAT_TOO_NEW, lambda: savepoint.restore(saved, tmp_path / "new"))
    write(body.replace(b'"required_features":[]', b'"required_features":["x"]'))
    refused(ErrorKind.FORMAT_TOO_NEW, lambda: savepoint.show(saved))
    write(body.replace(b'"native"', b'"odd"'))
    refused(ErrorKind.FORMAT_TOO_NEW, lambda: savepoint.restore(saved, tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_index_round_trip(saved: Path) -> None:
    index = savepoint.show(saved).index
    assert decode_index(encode_index(index)) == index


@pytest.mark.parametrize("comes", ["before", "meanwhile"])
def test_a_query_that_runs_is_not_moved(
    built: CheckpointBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comes: str,
) -> None:
    """Its sink takes both for one query: the rows of batches that both write are lost."""
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    beat = json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 600_000}).encode()

    def starts(*_: object) -> None:
        built.storage.put_bytes(f"{layout.RUNNING_PREFIX}run.json", beat)

    if comes == "before":
        starts()
    new, sink = tmp_path / "new", tmp_path / "sink"
    for dry_run in (True, False) if comes == "before" else (False,):
        error = refused(
            ErrorKind.QUERY_RUNNING,
            savepoint.fork,
            built.root,
            new,
            keep_query_id=True,
            file_sink=sink,
            dry_run=dry_run,
            progress=starts,
        )
        assert str(built.root) in error.message
    assert not new.exists() and not sink.exists()
    savepoint.fork(built.root, new)  # another query, beside this one


def test_a_run_that_comes_and_goes_while_a_query_is_moved(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """As of a schedule. No heartbeat is left, but its batch was in no state of the new query, and
    the sink took that one's next batch for it.
    """

    def runs(*_: object) -> None:
        for log in (spark_names.offsets_key, spark_names.commits_key):
            built.storage.put_bytes(log(6), built.storage.read(log(5)))

    new, sink = tmp_path / "new", tmp_path / "sink"
    more: dict[str, Any] = {"file_sink": sink, "progress": runs}
    error = refused(
        ErrorKind.QUERY_RUNNING, savepoint.fork, built.root, new, keep_query_id=True, **more
    )
    assert str(built.root) in error.message and "leave out --keep-query-id" in error.hint
    assert not new.exists() and not sink.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".new")]
    for log in (spark_names.offsets_key, spark_names.commits_key):
        built.storage.delete([log(6)])
    savepoint.fork(built.root, new, **more)  # another query, beside this one


class _NoNumberLeft(RowsBuilder):
    """The family that the schema has was never written, and another has the last number."""

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        last = (ColumnFamily("last", 65_535, "point"),)
        return replace(super().header(store, version), column_families=last, keys=0)

    def changelogs(self, store: StoreId, versions: int) -> None:
        for version in range(1, versions + 1):
            key = layout.changelog_key(
                store, VersionId(version, version_id(store, version)), self.spark_format
            )
            self.storage.put_bytes(key, changelog_bytes(self.header(store, version), []))


def test_an_edit_for_which_no_number_is_left(tmp_path: Path) -> None:
    """Keys have two bytes for it."""
    built = _NoNumberLeft(tmp_path / "query").build(2, snapshots=())
    savepoint.create(built.root, tmp_path / "saved")
    before = tree(tmp_path)
    table = pa.table({"key": [{"k": 1}], "value": [{"n": "x"}]})
    error = refused(
        ErrorKind.UNSUPPORTED,
        lambda: savepoint.edit(tmp_path / "saved", tmp_path / "edited", table=table),
    )
    assert "would be number 65536" in error.message
    assert tree(tmp_path) == before
