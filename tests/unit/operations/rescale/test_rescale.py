"""Rescales without a JVM.

Bad input changes nothing. A user can finish or undo an interrupted rescale. Millpond notices a
running query.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.format import layout
from millpond.format.composed import intersect
from millpond.model.json_fields import KeyGroupsInfo
from millpond.model.key_groups import KeyGroups, merge_ranges
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rescale, undo, write
from millpond.spark import heartbeats as heartbeats_module
from millpond.spark.heartbeats import heartbeats
from millpond.spark.log_edit import (
    commit_with_state_ids,
    offsets_with_partitions,
    operator_metadata_with_partitions,
)
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import LocalStorage, MemoryStorage, ObjectInfo
from millpond.storage.split import SplitStorage
from tests.agent_driver import CallError, call
from tests.checkpoints import CheckpointBuilder
from tests.failing_storage import FailingStorage, Killed
from tests.row_checkpoints import RowsBuilder

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(
        tmp_path / "check point", partitions=4, groups=KeyGroups(48, 12)
    ).build()


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


def refused(built: CheckpointBuilder, partitions: int, dry_run: bool = False) -> MillpondError:
    before = tree(built.root)
    with pytest.raises(MillpondError) as caught:
        rescale(built.storage, "it", partitions, dry_run=dry_run)
    assert tree(built.root) == before
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("partitions", [0, -1, 65_537, 4])
def test_numbers_that_cannot_be(built: CheckpointBuilder, partitions: int) -> None:
    assert refused(built, partitions).kind is ErrorKind.PARTITIONS_INVALID


def test_the_numbers_that_move_no_row_are_named(built: CheckpointBuilder) -> None:
    planned = rescale(built.storage, "it", 5, dry_run=True)
    assert planned.way == "rehash" and planned.near == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert rescale(built.storage, "it", 6, dry_run=True).way == "composed"


def test_rows_that_cannot_be_read_change_nothing(built: CheckpointBuilder) -> None:
    # No reader can decode these made-up rows.
    assert refused(built, 5).kind is ErrorKind.CHANGELOG_DAMAGED


def test_only_what_changes_differs_in_the_logs(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    report = rescale(built.storage, "it", 8)
    after = tree(built.root)
    assert {k: v for k, v in after.items() if k in before} == before, "the rescale changes no file"
    assert (report.current, report.partitions, report.batch, report.stores) == (4, 8, 6, 8)
    assert report.written_bytes == sum(len(v) for k, v in after.items() if k not in before)
    old, new = before["offsets/5"].decode(), after["offsets/6"].decode()
    assert new == old.replace(": ", ":").replace(", ", ",").replace('"4"', '"8"')
    assert after["commits/6"] == before["commits/5"]
    assert read_spark_metadata(built.storage).partitions == 8
    names = [f"state/0/{p}/7.manifest" for p in range(8)]
    assert sorted(k for k in after if k not in before) == sorted(
        [*names, "offsets/6", "commits/6", "millpond/pins/rescale-0-6.json"]
    )


def test_a_composed_manifest_refers_to_files_of_other_partitions(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """`checkpoint show` called them unreferenced: a fork has no other manifest."""
    rescale(built.storage, "it", 8)
    savepoint.fork(built.root, tmp_path / "fork")
    (operator,) = overview(LocalStorage(str(tmp_path / "fork")), "fork").operators
    assert sum(store.sst_bytes for store in operator.stores) > 0
    assert [store.unreferenced_bytes for store in operator.stores] == [0] * len(operator.stores)


def test_a_dry_run_says_the_same_and_writes_nothing(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    planned = rescale(built.storage, "it", 12, dry_run=True)
    assert tree(built.root) == before
    done = rescale(built.storage, "it", 12)
    assert planned.dry_run and not done.dry_run
    assert (planned.state_bytes, planned.stores, planned.batch) == (
        done.state_bytes,
        done.stores,
        done.batch,
    )


def test_no_committed_batch(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "new")
    built.spark_logs(1)
    (built.root / "commits/0").unlink()
    assert refused(built, 4).kind is ErrorKind.BATCH_NOT_COMMITTED


def test_no_checkpoint_at_all(tmp_path: Path, capsys: Captured) -> None:
    assert main(["rescale", str(tmp_path / "nothing"), "--partitions", "4"]) == 2
    assert "NOT_A_CHECKPOINT" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_another_provider(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "foreign", provider="org.apache.spark.sql.X").build()
    (built.root / layout.FORMAT_KEY).unlink()
    assert refused(built, 4).kind is ErrorKind.FOREIGN_CHECKPOINT


def test_an_uncommitted_batch_is_left_out_only_if_told_to(built: CheckpointBuilder) -> None:
    (built.root / "commits/5").unlink()
    assert refused(built, 8).kind is ErrorKind.BATCH_NOT_COMMITTED
    (built.root / layout.crc_key("offsets/5")).write_bytes(b"of the entry as it was")
    report = rescale(built.storage, "it", 8, skip_uncommitted=True)
    assert report.batch == 6
    spark = read_spark_metadata(built.storage)
    assert spark.commit_batches == (0, 1, 2, 3, 4, 5, 6)
    # The query reads the input of the batch that was left out again. A file source refuses entries
    # that go back.
    assert spark.offsets[6].sources == spark.offsets[5].sources == spark.offsets[4].sources
    assert [spark.was_left_out(batch) for batch in (4, 5, 6)] == [False, True, False]
    assert not (built.root / layout.crc_key("offsets/5")).exists()


@pytest.mark.parametrize("partitions", [8, 3])
def test_every_store_is_planned_once(built: CheckpointBuilder, partitions: int) -> None:
    asked: Counter[str] = Counter()

    class Counting(LocalStorage):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            asked[prefix] += 1
            return super().list(prefix)

        def read_range(self, key: str, offset: int, length: int) -> bytes:
            asked[key] += 1
            return super().read_range(key, offset, length)

    rescale(Counting(str(built.root)), "it", partitions, dry_run=True)
    assert {
        prefix: asked[prefix] for prefix in map(layout.store_prefix, built.stores())
    } == dict.fromkeys(map(layout.store_prefix, built.stores()), 1)
    assert {count for key, count in asked.items() if key.endswith(".changelog")} == {1}


def test_a_store_that_is_not_scalable(built: CheckpointBuilder) -> None:
    for manifest in built.manifests[built.stores()[1]]:
        info = KeyGroupsInfo(
            max_parallelism=48, base=12, partitions=4, scalable=False, reason="collated keys"
        )
        built.changed(manifest, key_groups=info)
    for version in (4, 5, 6):
        (built.root / f"state/0/1/{version}.changelog").unlink()
    (built.root / "commits/5").unlink()
    (built.root / "offsets/5").unlink()
    error = refused(built, 8)
    assert error.kind is ErrorKind.STORE_UNSCALABLE and "collated keys" in str(error)


def test_a_file_that_is_missing(built: CheckpointBuilder) -> None:
    (built.root / "state/0/2/6.changelog").unlink()
    assert refused(built, 8).kind is ErrorKind.CHANGELOG_MISSING


# ---- interrupted


def interrupt(built: CheckpointBuilder, partitions: int) -> None:
    """Leave what a kill before the last step but one leaves."""
    rescale(built.storage, "it", partitions)
    new = tree(built.root)
    (built.root / "commits/6").unlink()
    from millpond.format.rescale_journal import Journal, encode_journal

    keys = tuple(k for k in new if k.endswith("7.manifest") or "pins" in k)
    import zlib

    journal = Journal(
        current=4,
        partitions=partitions,
        batch=6,
        offsets_crc32=zlib.crc32(new["offsets/6"]),
        keys=keys,
        created_ms=1,
    )
    built.storage.put_bytes(layout.RESCALE_JOURNAL_KEY, encode_journal(journal))


@pytest.mark.parametrize("name", ["check pont", ""])
def test_undo_of_a_place_that_is_no_checkpoint(
    built: CheckpointBuilder, name: str, capsys: Captured
) -> None:
    """A path with an error in it was told, by exit code 0, that there was no rescale."""
    before = tree(built.root)
    place = built.root.parent / name
    assert main(["rescale", str(place), "--undo"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"{place}" in said.err
    assert tree(built.root) == before and place.exists() == (name == "")


def test_undo_leaves_nothing(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    interrupt(built, 8)
    assert undo(built.storage, "it")
    assert tree(built.root) == before
    assert not undo(built.storage, "it")


@pytest.mark.parametrize("skipped", [False, True])
def test_undo_without_the_entry_of_the_offset_log(built: CheckpointBuilder, skipped: bool) -> None:
    """Somebody removed the entry by hand."""
    if skipped:
        (built.root / "commits/5").unlink()
        for partition in range(4):
            (built.root / f"state/0/{partition}/6.changelog").unlink()
    before = tree(built.root)
    storage = FailingStorage(str(built.root), stop_before="commits/6")
    with pytest.raises(UnavailableError):
        rescale(storage, "it", 8, skip_uncommitted=skipped)
    (built.root / "offsets/6").unlink()
    assert (built.root / "state/0/7/7.manifest").exists()
    assert undo(built.storage, "it")
    assert tree(built.root) == before


def test_sums_of_files_that_were_there_before_go(built: CheckpointBuilder) -> None:
    """Somebody went back behind batch 6, with which a run had begun, and left batch 5 uncommitted.
    Spark refused to read the new files: the sums beside them were of the old ones.
    """
    metadata = f"{layout.operator_metadata_v2_prefix(0)}6"
    built.storage.put_bytes(metadata, built.storage.read(layout.operator_metadata_v1_key(0)))
    (built.root / "commits/5").unlink()
    sidecars = [layout.crc_key(key) for key in ("commits/5", metadata)]
    for key in sidecars:
        built.storage.put_bytes(key, b"crc\0" + (512).to_bytes(4, "big") + b"sums")
    rescale(built.storage, "it", 8, skip_uncommitted=True)
    assert verify(built.storage, "it").problems == []
    assert not [key for key in sidecars if (built.root / key).exists()]


def test_undo_takes_back_no_batch_that_spark_committed(built: CheckpointBuilder) -> None:
    """Somebody killed the rescale after the journal.

    Then the query finished the batch that the rescale was to leave out.
    """
    (built.root / "commits/5").unlink()
    storage = FailingStorage(str(built.root), stop_before="offsets/6")
    with pytest.raises(UnavailableError):
        rescale(storage, "it", 8, skip_uncommitted=True)
    (built.root / "commits/5").write_text('v1\n{"nextBatchWatermarkMs":0}')
    before = tree(built.root)
    assert undo(built.storage, "it")
    del before[layout.RESCALE_JOURNAL_KEY]
    left = [key for key in before if key.startswith(layout.RUNNING_PREFIX)]
    assert sorted(key.rpartition(".")[2] for key in left) == ["hold", "json"]
    for key in left:  # of the killed one
        del before[key]
    assert tree(built.root) == before


@pytest.mark.parametrize("partitions", [8, 2])
def test_a_batch_that_spark_commits_meanwhile_is_not_left_out(
    built: CheckpointBuilder, partitions: int
) -> None:
    """A run came and went while the rescale was planned. Its batch was committed, and its sink had
    the rows. The rescale took the batch back, so the sink got them twice.
    """
    (built.root / "commits/5").unlink()
    commit = b'v1\n{"nextBatchWatermarkMs":7}'
    before: dict[str, bytes] = {}

    def meanwhile(report: object) -> None:
        built.storage.put_bytes("commits/5", commit)
        before.update(tree(built.root))

    with pytest.raises(MillpondError) as e:
        rescale(built.storage, "it", partitions, skip_uncommitted=True, announce=meanwhile)
    assert e.value.kind is ErrorKind.QUERY_RUNNING and "batch 5" in str(e.value)
    ours = [key for key in before if key.startswith(layout.RUNNING_PREFIX)]
    assert tree(built.root) == {key: text for key, text in before.items() if key not in ours}
    assert rescale(built.storage, "it", partitions).batch == 6


def test_a_batch_that_a_query_does_meanwhile_is_not_left_out(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats_module, "_ENDING_S", 0.05)
    (built.root / "commits/5").unlink()
    before = tree(built.root)

    def started(report: object) -> None:
        beat(built, 1, "elsewhere")

    with pytest.raises(MillpondError) as e:
        rescale(built.storage, "it", 8, skip_uncommitted=True, announce=started)
    assert e.value.kind is ErrorKind.QUERY_RUNNING
    after = tree(built.root)
    del after["millpond/running/run-1.json"]
    assert after == before


def test_undo_of_one_that_was_killed_when_it_looked_for_such_a_batch(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (built.root / "commits/5").unlink()

    def killed(*arguments: object) -> None:
        built.storage.put_bytes("commits/5", b'v1\n{"nextBatchWatermarkMs":7}')
        raise Killed

    monkeypatch.setattr(write, "_refuse_finished", killed)
    with pytest.raises(Killed):
        rescale(built.storage, "it", 8, skip_uncommitted=True)
    before = tree(built.root)
    assert undo(built.storage, "it")
    ours = [layout.RESCALE_JOURNAL_KEY, "offsets/6"]
    assert tree(built.root) == {key: text for key, text in before.items() if key not in ours}


def test_the_same_again_finishes_another_number_is_refused(built: CheckpointBuilder) -> None:
    interrupt(built, 8)
    assert refused(built, 12).kind is ErrorKind.RESCALE_UNFINISHED
    assert refused(built, 8, dry_run=True).kind is ErrorKind.RESCALE_UNFINISHED
    report = rescale(built.storage, "it", 8)
    assert report.undone and read_spark_metadata(built.storage).last_committed_batch == 6


def said(capsys: Captured, *words: object) -> str:
    """Return all that a command prints that ends with exit code 1."""
    assert main([str(word) for word in words]) == 1
    return "".join(capsys.readouterr())


def test_every_command_names_the_rescale_to_finish(tmp_path: Path, capsys: Captured) -> None:
    """`verify` called no batch whole, and sent the user to a copy. `show` showed the new number of
    partitions as that of the state, and its new partitions as gone.
    """
    built = RowsBuilder(tmp_path / "check point", partitions=4, groups=KeyGroups(48, 12)).build()
    interrupt(built, 6)
    root = built.root
    finish, back = f"millpond rescale '{root}' --partitions 6", f"millpond rescale '{root}' --undo"
    reading: list[tuple[object, ...]] = [
        ("checkpoint", "verify", root),
        ("checkpoint", "skew", root),
        ("state", "list", root),
        ("state", "read", root),
        ("state", "get", root, "--key", "k=1"),
        ("state", "history", root, "--key", "k=1"),
        ("state", "blame", root),
        ("savepoint", "create", root, tmp_path / "saved"),
        ("fork", root, tmp_path / "fork"),
        ("rescale", root, "12"),
        ("rescale", root, "6", "--dry-run"),
    ]
    for words in reading:
        text = said(capsys, *words)
        assert finish in text and back in text, words
        assert "a rescale from 4 to 6 partitions" in text and "RESCALE_UNFINISHED" in text, words
        assert "is whole" not in text and "savepoint." not in text, words
    assert not verify(built.storage, str(root)).newest_whole_batch
    shown = said(capsys, "checkpoint", "show", root)
    assert "a rescale from 4 to 6 partitions" in shown and finish in shown and back in shown
    assert "partitions         4\n" in shown
    assert "partitions 4 to 5 are none of the last committed batch: of the rescale" in shown
    undo(built.storage, str(root))
    assert main(["checkpoint", "verify", str(root)]) == 0


def test_what_spark_wrote_since_is_left_alone(built: CheckpointBuilder) -> None:
    """Somebody killed the rescale before it wrote the offset log's entry, and the query ran on.

    So a batch of the query has that number.
    """
    interrupt(built, 8)
    (built.root / "offsets/6").write_text((built.root / "offsets/5").read_text())
    before = tree(built.root)
    assert undo(built.storage, "it")
    del before[layout.RESCALE_JOURNAL_KEY]
    assert tree(built.root) == before


@pytest.mark.parametrize("switched", [True, False])
def test_undo_after_spark_has_deleted_the_entry(
    built: CheckpointBuilder, capsys: Captured, switched: bool
) -> None:
    """The query ran on, for so long that the number of the batch is in no log any more.

    If the rescale had switched over, it runs with the new number of partitions.
    """
    with pytest.raises(Killed):
        stop = "commits/6" if switched else "offsets/6"
        rescale(FailingStorage(str(built.root), stop_before=stop, kills=True), "it", 8)
    entry = (built.root / f"offsets/{6 if switched else 5}").read_text()
    commit = (built.root / "commits/5").read_text()
    for batch in range(7, 10):
        (built.root / f"offsets/{batch}").write_text(entry)
        (built.root / f"commits/{batch}").write_text(commit)
    for batch in range(7):
        for log in (layout.OFFSETS_DIR, layout.COMMITS_DIR):
            (built.root / log / str(batch)).unlink(missing_ok=True)
    before = tree(built.root)
    assert main(["rescale", str(built.root), "--undo"]) == 0
    told = "there is no rescale to take back" if switched else "is taken back"
    assert told in capsys.readouterr().out
    left = {k: v for k, v in before.items() if not k.startswith(layout.RUNNING_PREFIX)}
    del left[layout.RESCALE_JOURNAL_KEY]
    assert tree(built.root) == left


# ---- what a batch that was never committed left


def left_behind(built: CheckpointBuilder, how: str) -> int:
    """Leave changelogs and snapshots above the last committed version. Return that version."""
    gone = {
        "killed half-way": ["commits/5"],
        "gone back": ["commits/5", "offsets/5", "commits/4", "offsets/4"],
    }[how]
    for key in gone:
        (built.root / key).unlink()
    if how == "killed half-way":
        for partition in (1, 3):
            (built.root / f"state/0/{partition}/6.changelog").unlink()
        return 5
    return 4


def opened(built: CheckpointBuilder, version: int, partitions: int) -> list[dict[str, object]]:
    """Return what the agent answers for each store at a version."""
    service, answers = AgentService(), []
    for partition in range(partitions):
        local = built.root.parent / f"local-{version}-{partition}"
        local.mkdir(exist_ok=True)
        store = {
            "root": f"file:{built.root}/state",
            "operator": 0,
            "partition": partition,
            "name": "default",
            "run_id": "r",
            "local_dir": str(local),
            "checkpoint_format": 1,
            "partitions_hint": None,
            "options": {},
            "retain_versions": 2,
            "min_deltas_for_snapshot": 2,
        }
        answers.append(
            call(
                service,
                "open",
                store=store,
                version=version,
                id=None,
                generation=1,
                load_empty=False,
            )
        )
    return answers


@pytest.mark.parametrize("how", ["killed half-way", "gone back"])
@pytest.mark.parametrize("partitions", [2, 8])
def test_stale_files_of_the_next_version_are_no_part_of_it(
    built: CheckpointBuilder, how: str, partitions: int
) -> None:
    left_behind(built, how)
    before = tree(built.root)
    rescale(built.storage, "it", partitions, skip_uncommitted=True, dry_run=True)
    assert tree(built.root) == before
    report = rescale(built.storage, "it", partitions, skip_uncommitted=True)
    for answer in opened(built, report.batch + 1, partitions):
        assert answer["partitions"] == partitions
        assert answer["snapshot_version"] == report.batch + 1, (
            "the agent restores from the manifest that the rescale wrote"
        )
    # The batch that was left out has no state of its own.
    left_out = f"version {report.batch}" if how == "killed half-way" else "nothing"
    assert all(left_out in problem.message for problem in verify(built.storage, "it").problems)


@pytest.mark.parametrize("how", ["killed half-way", "gone back"])
def test_a_rescale_over_stale_files_can_be_undone_at_every_step(
    built: CheckpointBuilder, how: str
) -> None:
    committed = left_behind(built, how)
    for steps in range(100):
        copy = built.copy_to(built.root.parent / f"copy-{steps}")
        storage = FailingStorage(str(copy.root), left=steps)
        try:
            rescale(storage, "it", 8, skip_uncommitted=True)
        except UnavailableError:
            if not undo(copy.storage, "it") and read_spark_metadata(copy.storage).partitions == 8:
                continue  # the rescale had switched over
            assert read_spark_metadata(copy.storage).partitions == 4
            for answer in opened(copy, committed, 4):
                assert answer["partitions"] == 4 and answer["version"] == committed
            copy.changelogs(copy.stores()[0], committed + 1)  # the query makes the batch again
            assert opened(copy, committed + 1, 1)[0]["version"] == committed + 1
        else:
            assert steps > 15
            break


# ---- running queries


def beat(built: CheckpointBuilder, pid: int, host: str = "") -> Path:
    file = built.root / "millpond/running/run-1.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    beat = {
        "run_id": "run-1",
        "host": host or socket.gethostname(),
        "pid": pid,
        "interval_ms": 5000,
    }
    file.write_text(json.dumps(beat))
    return file


def test_a_running_query_is_left_alone(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    beat(built, os.getpid())
    error = refused(built, 8)
    assert error.kind is ErrorKind.QUERY_RUNNING and "run-1" in str(error)
    assert rescale(built.storage, "it", 8, dry_run=True).dry_run


def test_a_query_that_is_just_ending_is_waited_for(built: CheckpointBuilder) -> None:
    file = beat(built, os.getpid())
    threading.Timer(0.3, file.unlink).start()
    assert rescale(built.storage, "it", 8).partitions == 8


def test_a_killed_driver_is_known_to_be_gone(built: CheckpointBuilder) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    file = beat(built, ended.pid)
    assert heartbeats(built.storage) == []
    beat(built, ended.pid, host="elsewhere")
    assert [b.host for b in heartbeats(built.storage)] == ["elsewhere"]
    os.utime(file, (time.time() - 16, time.time() - 16))
    assert heartbeats(built.storage) == []
    file.write_text('{"run')  # a query is just writing it
    assert len(heartbeats(built.storage)) == 1


def test_what_the_last_start_asked_for(built: CheckpointBuilder, capsys: Captured) -> None:
    asked = {"partitions": 16, "run_id": "run-1", "updated_ms": 1, "refused": ""}
    (built.root / "millpond/asked.json").write_text(json.dumps(asked))
    assert main(["checkpoint", "show", str(built.root)]) == 0
    text = capsys.readouterr().out
    assert "asked for          16 partitions, by the last start of the query" in text
    assert f"millpond rescale '{built.root}' --partitions 16" in text and "refused" not in text
    (built.root / "millpond/asked.json").write_text(
        json.dumps({**asked, "refused": "QUERY_RUNNING: it runs"})
    )
    assert main(["checkpoint", "show", str(built.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["asked_partitions"], shown["asked_refused"]) == (16, "QUERY_RUNNING: it runs")
    rescale(built.storage, "it", 16)
    assert main(["checkpoint", "show", str(built.root)]) == 0
    assert "asked for" not in capsys.readouterr().out


# ---- option rescale.onRestart: what the agent does


def on_start(built: CheckpointBuilder, partitions: int, **options: object) -> dict[str, object]:
    uri = f"file:{built.root}"
    return call(
        AgentService(),
        "rescale",
        checkpoint=uri,
        run_id="r",
        partitions=partitions,
        options=options,
    )


def test_agent_rescales_at_a_start(built: CheckpointBuilder) -> None:
    answer = on_start(built, 8)
    assert answer.pop("seconds") is not None and answer == {"from": 4, "way": "composed"}
    assert read_spark_metadata(built.storage).partitions == 8
    assert on_start(built, 8) == {}, "there is nothing to do"


@pytest.mark.parametrize("partitions", [4, 8, 12])
def test_agent_finds_an_interrupted_one(built: CheckpointBuilder, partitions: int) -> None:
    interrupt(built, 8)
    on_start(built, partitions)
    assert read_spark_metadata(built.storage).partitions == partitions
    assert not (built.root / layout.RESCALE_JOURNAL_KEY).exists()


def test_agent_refuses_as_the_command_does(built: CheckpointBuilder) -> None:
    (built.root / "commits/5").unlink()
    before = tree(built.root)
    for partitions, options, kind in (
        (8, {}, ErrorKind.BATCH_NOT_COMMITTED),
        (8, {"maxParallelism": "x"}, ErrorKind.INVALID_OPTION),
        (0, {}, ErrorKind.INVALID_ARGUMENT),
    ):
        with pytest.raises(CallError) as caught:
            on_start(built, partitions, **options)
        assert caught.value.kind is kind
    assert tree(built.root) == before


# ---- the command


def test_command(built: CheckpointBuilder, capsys: Captured) -> None:
    copy = built.root.parent / "copy"
    shutil.copytree(built.root, copy)
    assert main(["rescale", str(built.root), "--partitions", "8"]) == 0
    text = capsys.readouterr().out
    assert "partitions  4 -> 8" in text and "no row moves" in text
    assert main(["rescale", str(copy), "--partitions", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["way"], report["partitions"], report["dry_run"]) == ("composed", 8, False)
    assert main(["rescale", str(copy), "--undo"]) == 0
    assert "no rescale to take back" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(copy)]) == 0


@pytest.mark.parametrize(
    "arguments", [[], ["--undo", "--partitions", "3"], ["--partitions", "0"], ["--partitions", "x"]]
)
def test_wrong_usage(built: CheckpointBuilder, arguments: list[str], capsys: Captured) -> None:
    before = tree(built.root)
    assert main(["rescale", str(built.root), *arguments]) == 2
    assert tree(built.root) == before and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "more", ["-p 6", "--max-parallelism 48", "--dry-run", "--skip-uncommitted", "--file-sink none"]
)
def test_undo_goes_alone(built: CheckpointBuilder, more: str, capsys: Captured) -> None:
    """What only a new rescale heeds was silently ignored."""
    interrupt(built, 8)
    before = tree(built.root)
    assert main(["rescale", str(built.root), "--undo", *more.split()]) == 2
    said = capsys.readouterr()
    name = "a number of partitions" if more == "-p 6" else more.split()[0]
    assert f"--undo goes without {name}\n" in said.err and said.out == ""
    assert tree(built.root) == before


# ---- the parts


def test_ranges() -> None:
    assert intersect([(0, 4), (6, 9)], [(2, 7), (8, 20)]) == ((2, 4), (6, 7), (8, 9))
    assert intersect([], [(0, 1)]) == intersect([(0, 2)], [(2, 3)]) == ()
    assert merge_ranges([(4, 6), (0, 2), (2, 4)]) == ((0, 6),)


def test_logs() -> None:
    text = (
        'v1\n{"batchWatermarkMs":5,"conf":{"spark.sql.shuffle.partitions":"2","a":"ü"}}\n{"x":'
        " 1}\n-"
    )
    changed = offsets_with_partitions(text, 16, name="offsets/3")
    assert changed == text.replace('"2"', '"16"')
    assert (
        commit_with_state_ids('v1\n{"nextBatchWatermarkMs":0}', {0: [["a"]]}, name="c")
        == 'v1\n{"nextBatchWatermarkMs":0}'
    )
    text = 'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["x"]]}}'
    assert commit_with_state_ids(text, {0: [["a"], ["b"]]}, name="c").endswith(
        '{"0":[["a"],["b"]]}}'
    )
    text = 'v2\n{"operatorInfo":{},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}'
    assert '"numPartitions":9' in operator_metadata_with_partitions(text, 9, name="m")
    for damaged in ("v1", "v1\nx", "v1\n[]", "v1\n{}"):
        with pytest.raises(MillpondError) as caught:
            offsets_with_partitions(damaged, 2, name="offsets/3")
        assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_state_that_is_kept_elsewhere(tmp_path: Path) -> None:
    """Rescale a query whose state is elsewhere.

    The rescale writes the logs where Spark reads them, and the manifests where the state is. It
    notices a running query.
    """
    built = CheckpointBuilder(tmp_path / "ckpt", partitions=4, groups=KeyGroups(48, 12)).build()
    state = MemoryStorage()
    for info in list(built.storage.list("")):
        if not layout.is_sparks(info.key):
            state.put_bytes(info.key, built.storage.read(info.key))
            built.storage.delete([info.key])
    split = SplitStorage(built.storage, state)
    beat = json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 10**6})
    built.storage.put_bytes(f"{layout.RUNNING_PREFIX}run.json", beat.encode())
    assert [beat.run_id for beat in heartbeats(split)] == ["run"]
    built.storage.delete([f"{layout.RUNNING_PREFIX}run.json"])
    before = {info.key for info in state.list("")}
    rescale(split, str(built.root), 8)
    assert read_spark_metadata(split).partitions == 8
    assert any(key.endswith(".manifest") for key in {info.key for info in state.list("")} - before)
    assert verify(split, "it").problems == []
    assert not [info.key for info in built.storage.list("") if not layout.is_sparks(info.key)]
