"""Rescales that were cut short, or that a query came into: a user can finish or undo them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.format import layout, spark_names
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale, undo, write
from millpond.spark import heartbeats as heartbeats_module
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import open_storage
from millpond.storage.given import Given, reached_by
from tests.agent_driver import call
from tests.checkpoints import CheckpointBuilder, tree
from tests.failing_storage import FailingStorage, Killed
from tests.rescale_scenes import beat, interrupt, refused
from tests.row_checkpoints import RowsBuilder
from tests.s3_server import HADOOP, S3Server, environment, s3_server

Captured = pytest.CaptureFixture[str]


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
    metadata = f"{spark_names.operator_metadata_v2_prefix(0)}6"
    built.storage.put_bytes(metadata, built.storage.read(spark_names.operator_metadata_v1_key(0)))
    (built.root / "commits/5").unlink()
    sidecars = [spark_names.crc_key(key) for key in ("commits/5", metadata)]
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
        for log in (spark_names.OFFSETS_DIR, spark_names.COMMITS_DIR):
            (built.root / log / str(batch)).unlink(missing_ok=True)
    before = tree(built.root)
    assert main(["rescale", str(built.root), "--undo"]) == 0
    told = "there is no rescale to take back" if switched else "is taken back"
    assert told in capsys.readouterr().out
    left = {k: v for k, v in before.items() if not k.startswith(layout.RUNNING_PREFIX)}
    del left[layout.RESCALE_JOURNAL_KEY]
    assert tree(built.root) == left


# ---- a file sink that only settings reach


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.mark.parametrize("way", ["again", "undo", "onRestart"])
def test_a_file_sink_that_only_settings_reach(
    built: CheckpointBuilder, server: S3Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The rescale reached it. Whoever took back what was left of that asked another S3."""
    for name in environment(""):
        monkeypatch.delenv(name, raising=False)
    settings, root = server.settings(), f"s3a://{server.bucket()}/out"
    sink = open_storage(root, settings)
    for number in range(6):
        sink.put_bytes(f"{spark_names.SINK_LOG_PREFIX}{number}", b"v1")
    entry = f"{spark_names.SINK_LOG_PREFIX}6"
    recorded = json.dumps({"sink": "file", "path": root}).encode()
    built.storage.put_bytes(layout.SINK_KEY, recorded)
    before = tree(built.root)
    with pytest.raises(Killed), reached_by(Given(settings, {})):
        storage = FailingStorage(str(built.root), stop_before="commits/6", kills=True)
        rescale(storage, "it", 8)
    assert entry in {info.key for info in sink.list("")}
    if way == "undo":
        with reached_by(Given(settings, {})):
            assert undo(built.storage, "it")
        assert tree(built.root) == before
        assert entry not in {info.key for info in sink.list("")}
        return
    if way == "again":
        with reached_by(Given(settings, {})):
            assert rescale(built.storage, "it", 8).undone
    else:
        answer = call(
            AgentService(),
            "rescale",
            checkpoint=str(built.root),
            partitions=8,
            options={"storage.s3.endpoint": server.endpoint},
            hadoop=HADOOP,
            file_sink=root,
        )
        assert answer["from"] == 4
    assert read_spark_metadata(built.storage).last_committed_batch == 6
    assert sink.read(entry) == b"v1"


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


def opened(built: CheckpointBuilder, version: int, partitions: int) -> list[dict[str, Any]]:
    """Return what the agent answers for each store at a version."""
    service, answers = AgentService(), list[dict[str, Any]]()
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
            "maintenance_interval_ms": 0,
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


def newest(answer: dict[str, Any]) -> int:
    """Return the version that a restore plan leads to."""
    return int(answer["lineage_base"]) + len(answer["lineage"]) - 1


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
        assert answer["db"]["version"] == report.batch + 1, (
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
                assert answer["partitions"] == 4 and newest(answer) == committed
            copy.changelogs(copy.stores()[0], committed + 1)  # the query makes the batch again
            assert newest(opened(copy, committed + 1, 1)[0]) == committed + 1
        else:
            assert steps > 15
            break
