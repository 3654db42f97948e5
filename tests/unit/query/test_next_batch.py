"""The image of the next batch is that of a look at the whole query."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import FormatError, NotFoundError
from millpond.format import layout, spark_names
from millpond.query.next_batch import newest_entry, next_image, read_setup
from millpond.query.whole import checkpoint_image
from tests.checkpoints import CheckpointBuilder


@pytest.mark.parametrize("spark_format", [1, 2])
def test_it_is_the_image_of_a_whole_look(tmp_path: Path, spark_format: int) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=spark_format).build()
    newest = newest_entry(built.storage)
    assert newest is not None
    assert newest.batch == 5
    before = checkpoint_image(built.storage, "query", 3)
    made = next_image(built.storage, before, 5)
    whole = checkpoint_image(built.storage, "query", 5)
    assert made is not None
    assert (made.batch, made.timestamp_ms, made.watermark_ms, made.partitions) == (
        whole.batch,
        whole.timestamp_ms,
        whole.watermark_ms,
        whole.partitions,
    )
    for mine, theirs in zip(made.operators, whole.operators, strict=True):
        assert [(s.partition, s.name, s.version, s.id) for s in mine.stores] == [
            (s.partition, s.name, s.version, s.id if spark_format > 1 else "")
            for s in theirs.stores
        ]
    assert next_image(built.storage, whole, 5) is None


def test_a_batch_of_another_kind_is_left_to_a_whole_look(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=2).build()
    before = checkpoint_image(built.storage, "query", 3)
    key = spark_names.offsets_key(5)
    good = built.storage.read(key)
    built.storage.put_bytes(key, good.replace(b'partitions": "2"', b'partitions": "4"'))
    assert next_image(built.storage, before, 5) is None
    built.storage.put_bytes(key, good.replace(b'"conf": {', b'"conf": {"millpond.leftOut": "1", '))
    assert next_image(built.storage, before, 5) is None
    built.storage.put_bytes(key, good)
    commit = spark_names.commits_key(5)
    whole = built.storage.read(commit)
    for other in (b'{"0": [["a"]]}', b'{"1": [["a"], ["b"]]}', b'{"0": [["a", "b"], ["c", "d"]]}'):
        text = b'v2\n{"nextBatchWatermarkMs": 0, "stateUniqueIds": ' + other + b"}"
        built.storage.put_bytes(commit, text)
        assert next_image(built.storage, before, 5) is None
    built.storage.put_bytes(commit, whole)
    assert next_image(built.storage, before, 5) is not None


def test_a_damaged_or_missing_entry_is_told(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query", spark_format=2).build()
    before = checkpoint_image(built.storage, "query", 3)
    built.storage.put_bytes(spark_names.commits_key(5), b"no log")
    with pytest.raises(FormatError):
        next_image(built.storage, before, 5)
    built.storage.delete([spark_names.offsets_key(4)])
    with pytest.raises(NotFoundError):
        next_image(built.storage, before, 4)


def test_the_setup_changes_with_a_new_run_and_not_with_a_batch(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "query").build(batches=4, snapshots=(3,))
    before = read_setup(built.storage, [0])
    built.storage.put_bytes(spark_names.commits_key(9), b"v1\n{}")
    assert read_setup(built.storage, [0]) == before
    for key in (
        f"{spark_names.operator_metadata_v2_prefix(0)}7",
        f"{layout.OPERATORS_PREFIX}1",
        layout.RESCALE_JOURNAL_KEY,
    ):
        built.storage.put_bytes(key, b"new")
        after = read_setup(built.storage, [0])
        assert after != before
        before = after
