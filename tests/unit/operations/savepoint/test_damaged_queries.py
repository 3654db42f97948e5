"""A command notices if a part of the query is lost that it needs.

The kind of its error says so. It comes before the command writes anything.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.depth import quick_first
from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.format.changelog import read_header
from millpond.format.rescale_journal import Journal, encode_journal
from millpond.model.ids import StoreId
from millpond.operations import migrate
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale
from millpond.query.glance import glance
from millpond.query.index import encode_index
from millpond.query.whole import checkpoint_image
from millpond.state.tables import read_state
from millpond.storage import LocalStorage, ObjectInfo
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.damage import with_operators
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder

Damage = Callable[[CheckpointBuilder], object]


@pytest.fixture(
    scope="module",
    params=quick_first([2, 1]),
    ids=["checkpoint-format-2", "checkpoint-format-1"],
)
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointBuilder:
    built = RowsBuilder(
        tmp_path_factory.mktemp("template"), partitions=4, spark_format=request.param
    ).build()
    with_operators(built, 3)
    return built


@pytest.fixture
def built(template: CheckpointBuilder, tmp_path: Path) -> CheckpointBuilder:
    return template.copy_to(tmp_path / "query")


def rows(query: Path, batch: int | None) -> list[tuple[int, str]]:
    found = read_state(query, operator=0, batch=batch).to_pylist()
    return sorted((row["key"]["k"], row["value"]["n"]) for row in found)


def without(*names: str) -> Damage:
    def remove(built: CheckpointBuilder) -> None:
        for name in names:
            path = built.root / name
            assert path.exists()
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def half_rescaled(built: CheckpointBuilder) -> None:
    journal = Journal(current=4, partitions=8, batch=6, offsets_crc32=1, keys=(), created_ms=1)
    built.storage.put_bytes(layout.RESCALE_JOURNAL_KEY, encode_journal(journal))


def other_partitions(number: int) -> Damage:
    def change(built: CheckpointBuilder) -> None:
        path = built.root / "offsets/5"
        path.write_text(path.read_text().replace('"4"', f'"{number}"'))

    return change


def copied(name: str, over: str) -> Damage:
    return lambda built: shutil.copy(built.root / name, built.root / over)


def cut(name: str) -> Damage:
    def halve(built: CheckpointBuilder) -> None:
        path = built.root / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return halve


def newest(built: CheckpointBuilder) -> Path:
    (path,) = (built.root / "state/0/3").glob("6*.changelog")
    return path


def cut_newest(built: CheckpointBuilder) -> None:
    """Cut the newest changelog behind its header."""
    path = newest(built)
    with path.open("rb") as file:
        read_header(file)
        at = file.tell()
    path.write_bytes(path.read_bytes()[: at + 3])


def cut_by_a_byte(built: CheckpointBuilder) -> None:
    newest(built).write_bytes(newest(built).read_bytes()[:-1])


def lose_a_source(built: CheckpointBuilder) -> None:
    rescale(built.storage, "name", 8)
    for path in (built.root / "state/0/3/sst").iterdir():
        path.unlink()


DAMAGE: dict[str, tuple[Damage, ErrorKind]] = {
    "one partition": (without("state/1/2"), ErrorKind.CHANGELOG_MISSING),
    "the last partition": (without("state/1/3"), ErrorKind.CHANGELOG_MISSING),
    "all but partition 0": (
        without(*(f"state/0/{p}" for p in (1, 2, 3))),
        ErrorKind.CHANGELOG_MISSING,
    ),
    "partition 0": (without("state/0/0"), ErrorKind.FORMAT_DAMAGED),
    "all state": (without("state"), ErrorKind.FORMAT_DAMAGED),
    "the operator in the middle": (without("state/1"), ErrorKind.FORMAT_DAMAGED),
    "the first operator": (without("state/0"), ErrorKind.FORMAT_DAMAGED),
    "operator metadata": (without("state/1/_metadata"), ErrorKind.FORMAT_DAMAGED),
    "a schema": (without("state/1/0/_metadata/schema"), ErrorKind.FORMAT_DAMAGED),
    "a schema, cut": (cut("state/1/0/_metadata/schema"), ErrorKind.FORMAT_DAMAGED),
    "the query's id": (without("metadata"), ErrorKind.FORMAT_DAMAGED),
    "format.json": (without("millpond/format.json"), ErrorKind.OBJECT_NOT_FOUND),
    "the newest offsets": (without("offsets/5"), ErrorKind.FORMAT_DAMAGED),
    "offsets as a commit": (copied("offsets/4", "commits/5"), ErrorKind.FORMAT_DAMAGED),
    "a commit as offsets": (copied("commits/4", "offsets/5"), ErrorKind.FORMAT_DAMAGED),
    "the offsets before": (without("offsets/4"), ErrorKind.FORMAT_DAMAGED),
    "fewer partitions": (other_partitions(2), ErrorKind.PARTITIONS_CHANGED),
    "the newest changelog, cut": (cut_newest, ErrorKind.CHANGELOG_DAMAGED),
    "a changelog of the newest batches, cut by a byte": (
        cut_by_a_byte,
        ErrorKind.CHANGELOG_DAMAGED,
    ),
    "a file that a composed manifest names": (lose_a_source, ErrorKind.SST_MISSING),
    "half a rescale": (half_rescaled, ErrorKind.RESCALE_UNFINISHED),
}
COMMANDS: dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda query, new: list(read_state(query, operator=0)),
    "create": lambda query, new: savepoint.create(query, new),
    "create canonical": lambda query, new: savepoint.create(query, new, format="canonical"),
    "fork": lambda query, new: savepoint.fork(query, new),
    "fork to others": lambda query, new: savepoint.fork(query, new, partitions=16),
    "release": lambda query, new: migrate.release(query, new, provider="rocksdb"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_noticed(built: CheckpointBuilder, tmp_path: Path, what: str) -> None:
    damage, kind = DAMAGE[what]
    assert verify(built.storage, "name").problems == []
    damage(built)
    found = verify(built.storage, "name").problems
    assert kind.value in {problem.kind for problem in found}
    new = tmp_path / "new"
    for name, command in COMMANDS.items():
        refused(kind, command, built.root, new)
        assert not new.exists(), name
    if what != "half a rescale":  # the same command finishes it
        before = tree(built.root)
        refused(kind, lambda: rescale(built.storage, "name", 16))
        assert tree(built.root) == before


@pytest.mark.parametrize("name", ["offsets/2", "commits/2", "commits/0", "offsets/0"])
def test_an_older_entry_of_the_logs(built: CheckpointBuilder, tmp_path: Path, name: str) -> None:
    """Spark removes the oldest entries, offsets first. Another missing entry was lost.

    The last batch does not need it.
    """
    without(name)(built)
    found = {problem.file for problem in verify(built.storage, "name").problems}
    assert found == (set() if name.endswith("/0") else {name})
    savepoint.create(built.root, tmp_path / "saved")
    assert savepoint.verify(tmp_path / "saved").ok


@pytest.mark.parametrize("gone", [(), (0,), (3, 1), (0, 1, 2, 3)])
def test_a_driver_that_was_killed_between_the_purges_of_its_logs(
    built: CheckpointBuilder, tmp_path: Path, gone: tuple[int, ...]
) -> None:
    """Spark removed several old entries of the offset log, and some of the commit log, in any
    order. All of these were taken for lost, and lookups, forks and erasures refused.
    """
    names = [*(f"offsets/{n}" for n in range(4)), *(f"commits/{n}" for n in gone)]
    whole = rows(built.root, None)
    without(*names)(built)
    assert verify(built.storage, "name").problems == []
    assert rows(built.root, None) == whole
    assert glance(built.storage, None, None)[0].batch == 5
    savepoint.create(built.root, tmp_path / "saved")
    savepoint.create(built.root, tmp_path / "older", batch=4)
    assert savepoint.verify(tmp_path / "saved").ok and savepoint.verify(tmp_path / "older").ok
    saved = tmp_path / "oldest"
    for batch in range(4):
        refused(ErrorKind.VERSION_EXPIRED, savepoint.create, built.root, saved, batch=batch)
    rescale(built.storage, "name", 16)
    assert verify(built.storage, "name").problems == []


def test_entries_of_the_offset_log_that_no_purge_removes(built: CheckpointBuilder) -> None:
    """Spark does not start without the last two."""
    without(*(f"offsets/{n}" for n in range(5)))(built)
    assert [problem.file for problem in verify(built.storage, "name").problems] == ["offsets/4"]
    without("offsets/5")(built)
    found = {problem.file for problem in verify(built.storage, "name").problems}
    assert "offsets/5" in found


def test_the_newest_commit_of_a_batch_that_another_follows(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    without("commits/4", "commits/5")(built)
    assert {problem.file for problem in verify(built.storage, "name").problems} == {"commits/4"}
    refused(ErrorKind.FORMAT_DAMAGED, lambda: savepoint.create(built.root, tmp_path / "saved"))
    savepoint.create(built.root, tmp_path / "saved", batch=3)
    assert savepoint.verify(tmp_path / "saved").ok


def test_ids_of_another_number_of_partitions(built: CheckpointBuilder, tmp_path: Path) -> None:
    if built.spark_format == 1:
        pytest.skip("the commit log lists no ids")
    path = built.root / "commits/5"
    path.write_text(path.read_text().replace(f', ["{version_id(StoreId(0, 3), 6)}"]', ""))
    assert ("PARTITIONS_CHANGED", "commits/5") in {
        (p.kind, p.file) for p in verify(built.storage, "name").problems
    }
    refused(ErrorKind.PARTITIONS_CHANGED, lambda: savepoint.create(built.root, tmp_path / "saved"))


@pytest.mark.parametrize("partitions", [2, 8])
@pytest.mark.parametrize("abandoned", [False, True])
def test_a_batch_that_a_rescale_left_out(
    built: CheckpointBuilder, tmp_path: Path, partitions: int, abandoned: bool
) -> None:
    """Spark's commit log has the batch, but the query never committed it.

    What its tasks wrote counts for nothing.
    """
    names = ["commits/5"]
    if not abandoned:
        names += [
            path.relative_to(built.root).as_posix() for path in built.root.rglob("6*.changelog")
        ]
    without(*names)(built)
    assert verify(built.storage, "name").problems == []
    rescale(built.storage, "name", partitions, skip_uncommitted=True)
    assert verify(built.storage, "name").problems == []
    for new, batch in (("last", None), ("before", 4)):
        savepoint.create(built.root, tmp_path / new, batch=batch)
        assert savepoint.verify(tmp_path / new).ok
    assert rows(built.root, None) == rows(built.root, 4) and len(rows(built.root, 4)) == 4 * 4
    e = refused(
        ErrorKind.BATCH_NOT_COMMITTED, lambda: savepoint.create(built.root, tmp_path / "x", batch=5)
    )
    assert "left out" in str(e)


def test_a_fork_has_the_plan_of_a_batch_that_was_left_out(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """The fork is like a fork from before the rescale: a sink may have seen that batch."""
    without("commits/5")(built)
    planned = _entry(built.root / "offsets/5")
    rescale(built.storage, "name", 8, skip_uncommitted=True)
    assert _entry(built.root / "offsets/5")[1] == _entry(built.root / "offsets/4")[1] != planned[1]
    savepoint.fork(built.root, tmp_path / "forked", batch=4)
    assert _entry(tmp_path / "forked/offsets/5") == planned


def test_the_plan_that_an_earlier_version_left_out_is_gone(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    without("commits/5")(built)
    rescale(built.storage, "name", 8, skip_uncommitted=True)
    path = built.root / "offsets/5"
    metadata, sources = _entry(path)
    metadata["conf"]["millpond.leftOut"] = "true"
    path.write_text("\n".join(["v1", json.dumps(metadata), *sources]))
    savepoint.fork(built.root, tmp_path / "forked", batch=4)
    assert not (tmp_path / "forked/offsets/5").exists()


def _entry(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata and the sources of an entry of the offset log."""
    _, metadata, *sources = path.read_text().split("\n")
    return json.loads(metadata), sources


def test_a_small_changelog_is_looked_at_once(built: CheckpointBuilder) -> None:
    """One request reads its header and its end."""

    asked: Counter[str] = Counter()

    class Counting(LocalStorage):
        def read_range(self, key: str, offset: int, length: int) -> bytes:
            asked[key] += 1
            return super().read_range(key, offset, length)

    image = checkpoint_image(Counting(str(built.root)), "it")
    changelogs = {file.source for file in image.files if file.source.endswith(".changelog")}
    assert changelogs and {key: asked[key] for key in changelogs} == dict.fromkeys(changelogs, 1)


def test_the_message_tells_what_can_still_be_had(built: CheckpointBuilder, tmp_path: Path) -> None:
    cut_newest(built)
    key = newest(built).relative_to(built.root).as_posix()
    e = refused(
        ErrorKind.CHANGELOG_DAMAGED, lambda: savepoint.create(built.root, tmp_path / "saved")
    )
    assert key in str(e) and "the last committed batch" in str(e)
    assert f"`millpond fork {built.root} <new checkpoint> --batch 4`" in e.hint
    assert verify(built.storage, "name").newest_whole_batch == 4
    savepoint.fork(built.root, tmp_path / "new", batch=4)
    assert rows(tmp_path / "new", None) == rows(built.root, 4)
    e = refused(ErrorKind.CHANGELOG_DAMAGED, lambda: rescale(built.storage, str(built.root), 8))
    assert "--batch 4`" in e.hint


def test_nothing_can_be_had(built: CheckpointBuilder, tmp_path: Path) -> None:
    without("state/0/3")(built)
    e = refused(
        ErrorKind.CHANGELOG_MISSING, lambda: savepoint.create(built.root, tmp_path / "saved")
    )
    assert e.hint.startswith("No committed batch is whole")
    assert verify(built.storage, "name").newest_whole_batch is None


def test_what_only_verify_sees_counts_for_the_newest_whole_batch(built: CheckpointBuilder) -> None:
    """A bit flipped in the middle of a changelog that the two newest batches need."""
    (path,) = (built.root / "state/0/2").glob("6*.changelog")
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    report = verify(built.storage, "name")
    assert {problem.kind for problem in report.problems} == {
        "CHANGELOG_DAMAGED"
    } and report.newest_whole_batch == 4


@pytest.mark.parametrize("format", ["native", "canonical"])
@pytest.mark.parametrize("what", ["a partition", "an operator"])
def test_a_savepoint_that_an_older_version_made_of_a_damaged_query(
    built: CheckpointBuilder, tmp_path: Path, format: str, what: str
) -> None:
    """The index is right. The savepoint does not hold what its own logs say."""
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format=format)

    def kept(operator: int, partition: int) -> bool:
        return operator != 1 or (what == "a partition" and partition != 3)

    if what == "an operator" and built.spark_format == 1:
        pytest.skip("nothing tells how many operators there are")
    index = savepoint.show(saved).index
    image = replace(
        index.image,
        operators=tuple(
            replace(op, stores=tuple(s for s in op.stores if kept(op.operator, s.partition)))
            for op in index.image.operators
            if kept(op.operator, 0)
        ),
    )
    doomed = (
        ("state/1/3/", "tables/1/default/default/3")
        if what == "a partition"
        else ("state/1/", "tables/1/")
    )
    files = {key: entry for key, entry in index.files.items() if not key.startswith(doomed)}
    tables = tuple(
        table for table in index.tables if kept(table.store.operator, table.store.partition)
    )
    for key in index.files.keys() - files.keys():
        (saved / key).unlink()
    (saved / "savepoint.json").write_bytes(
        encode_index(replace(index, image=image, files=files, tables=tables))
    )
    assert (
        "SAVEPOINT_DAMAGED" in {p.kind for p in savepoint.verify(saved).problems}
        or format == "native"
    )
    assert not savepoint.verify(saved).ok
    for partitions in (None, 8):
        with pytest.raises(MillpondError) as caught:
            savepoint.restore(saved, tmp_path / "new", partitions=partitions)
        assert caught.value.kind is ErrorKind.SAVEPOINT_DAMAGED
    assert not (tmp_path / "new").exists()


class Committing(LocalStorage):
    """A storage in which a query commits its first batch while somebody looks.

    The first list does not hold the whole batch yet.
    """

    def __init__(self, built: CheckpointBuilder) -> None:
        super().__init__(str(built.root), fsync=False)
        late = [
            info.key
            for info in self.list("")
            if info.key.startswith(("state/0/1/", "state/1/", "commits/"))
        ]
        self.late = {key: self.read(key) for key in sorted(late, reverse=True)}
        self.delete(late)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = list(super().list(prefix))
        if prefix == "state/":
            for key, data in getattr(self, "late", {}).items():
                self.put_bytes(key, data)
        return iter(found)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_the_first_batch_is_committed_meanwhile(tmp_path: Path, spark_format: int) -> None:
    """A command reads the logs before it lists the state.

    If a batch is committed then, all its files are there.
    """
    built = RowsBuilder(tmp_path / "query", spark_format=spark_format).build(1, snapshots=())
    with_operators(built, 2)
    storage = Committing(built)
    refused(ErrorKind.BATCH_NOT_COMMITTED, lambda: checkpoint_image(storage, "it"))
    image = checkpoint_image(storage, "it")
    assert [(op.operator, [s.partition for s in op.stores]) for op in image.operators] == [
        (0, [0, 1]),
        (1, [0, 1]),
    ]
