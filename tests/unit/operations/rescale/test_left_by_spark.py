"""What Spark's own repartition leaves: it begins a batch before it refuses Millpond's stores. No
query starts then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rescale, undo
from millpond.query.survey import survey
from millpond.spark.log_edit import offsets_with_conf, offsets_with_partitions
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import LocalStorage, ObjectInfo
from tests.agent_driver import call
from tests.checkpoints import CheckpointBuilder, tree
from tests.rescale_scenes import interrupt, refused

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def left(built: CheckpointBuilder) -> CheckpointBuilder:
    """A Spark checkpoint of 4 partitions, of which Spark was to make 8."""
    text = (built.root / "offsets/5").read_text()
    (built.root / "offsets/6").write_text(offsets_with_partitions(text, 8, name="offsets/6"))
    (built.root / spark_names.crc_key("offsets/6")).write_bytes(b"")
    return built


def without_it(built: CheckpointBuilder) -> dict[str, bytes]:
    ours = ("offsets/6", spark_names.crc_key("offsets/6"))
    return {key: data for key, data in tree(built.root).items() if key not in ours}


def test_it_is_named(left: CheckpointBuilder, capsys: Captured) -> None:
    (problem,) = verify(left.storage, "it").problems
    assert (problem.kind, problem.file) == ("RESCALE_UNFINISHED", "offsets/6")
    assert "Spark's own repartition began batch 6 with 8 partitions" in problem.message
    assert "`millpond rescale it --partitions 8`" in problem.hint
    assert "`millpond rescale it --undo`" in problem.hint
    shown = overview(left.storage, "it")
    assert shown.partitions == 4 and [problem.message in text for text in shown.problems] == [True]
    assert main(["checkpoint", "verify", str(left.root)]) == 1
    assert "Spark's own repartition" in capsys.readouterr().out


def test_the_committed_batch_can_be_saved(left: CheckpointBuilder, tmp_path: Path) -> None:
    savepoint.fork(left.root, tmp_path / "fork")
    assert main(["checkpoint", "verify", str(tmp_path / "fork")]) == 0


@pytest.mark.parametrize("partitions", [8, 12, 2])
def test_a_rescale_takes_it_away_first(left: CheckpointBuilder, partitions: int) -> None:
    before = tree(left.root)
    planned = rescale(left.storage, "it", partitions, dry_run=True)
    assert tree(left.root) == before
    done = rescale(left.storage, "it", partitions)
    assert (done.current, done.partitions, done.batch) == (4, partitions, 6)
    assert done.undone and planned.undone and planned.stores == done.stores
    assert not (left.root / spark_names.crc_key("offsets/6")).exists()
    spark = read_spark_metadata(left.storage)
    assert (spark.last_batch, spark.last_committed_batch, spark.partitions) == (6, 6, partitions)
    assert verify(left.storage, "it").ok


def test_a_rescale_to_the_present_number_only_takes_it_away(
    left: CheckpointBuilder, capsys: Captured
) -> None:
    whole, before = without_it(left), tree(left.root)
    assert main(["rescale", str(left.root), "--partitions", "4", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert tree(left.root) == before and "taken back" not in said.out + said.err
    assert main(["rescale", str(left.root), "--partitions", "4"]) == 0
    said = capsys.readouterr()
    assert "partitions  4 -> 4" in said.out and "taken back first" in said.err
    assert tree(left.root) == whole and verify(left.storage, "it").ok
    assert refused(left, 4).kind is ErrorKind.PARTITIONS_INVALID, "there is nothing to do any more"


def test_a_number_that_cannot_be_changes_nothing(left: CheckpointBuilder) -> None:
    assert refused(left, 0).kind is ErrorKind.PARTITIONS_INVALID
    assert refused(left, 8, max_parallelism=12).kind is ErrorKind.MAX_PARALLELISM_INVALID
    assert refused(left, 8, file_sink="/not/there").kind is ErrorKind.FILE_SINK_INVALID


def test_undo_takes_it_away(left: CheckpointBuilder) -> None:
    whole = without_it(left)
    assert undo(left.storage, "it")
    assert tree(left.root) == whole
    assert not undo(left.storage, "it")


@pytest.mark.parametrize("partitions", [4, 8, 12])
def test_a_start_with_rescale_on_restart_takes_it_away(
    left: CheckpointBuilder, partitions: int
) -> None:
    answer = call(
        AgentService(),
        "rescale",
        checkpoint=f"file:{left.root}",
        partitions=partitions,
        options={},
        file_sink="none",
    )
    assert answer.get("from") == (None if partitions == 4 else 4)
    spark = read_spark_metadata(left.storage)
    assert spark.last_batch == spark.last_committed_batch == (5 if partitions == 4 else 6)
    assert spark.partitions == partitions


@pytest.mark.parametrize("what", ["it reads", "a setting", "the watermark", "the same number"])
def test_another_batch_that_was_begun_is_kept(left: CheckpointBuilder, what: str) -> None:
    """It may read something."""
    text = (left.root / "offsets/6").read_text()
    version, metadata, *sources = text.split("\n")
    changed = {
        "it reads": "\n".join([version, metadata, *sources[:-1], '{"logOffset":99}']),
        "a setting": offsets_with_conf(text, {"spark.sql.other": "1"}, name="offsets/6"),
        "the watermark": "\n".join(
            [version, json.dumps({**json.loads(metadata), "batchWatermarkMs": 77}), *sources]
        ),
        "the same number": (left.root / "offsets/5").read_text(),
    }
    (left.root / "offsets/6").write_text(changed[what])
    assert verify(left.storage, "it").ok
    assert refused(left, 12).kind is ErrorKind.BATCH_NOT_COMMITTED
    assert not undo(left.storage, "it")
    assert (left.root / "offsets/6").exists()


def test_half_a_rescale_is_none_of_sparks(built: CheckpointBuilder) -> None:
    interrupt(built, 8)
    (problem,) = verify(built.storage, "it").problems
    assert problem.file == layout.RESCALE_JOURNAL_KEY


def test_a_rescale_that_ends_meanwhile_is_none_of_sparks(left: CheckpointBuilder) -> None:
    """Its journal is gone when it is looked for, and its commit was not there before."""
    undo(left.storage, "it")

    class Meanwhile(LocalStorage):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            found = list(super().list(prefix))
            if prefix == "commits/" and not (left.root / "offsets/6").exists():
                rescale(left.storage, "it", 8)
            return iter(found)

    assert survey(Meanwhile(str(left.root)), "it").repartition is None
    assert (left.root / "commits/6").exists()
