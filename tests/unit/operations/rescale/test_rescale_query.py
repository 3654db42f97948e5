"""`rescale_query` with a made-up query, over a Spark checkpoint without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.model.key_groups import KeyGroups
from millpond.spark.metadata import read_spark_metadata
from tests.checkpoints import CheckpointBuilder, tree


class Query:
    """A query that waits for input.

    If it is `unfinished`, each stop comes when a batch has just begun.
    """

    starts = 0
    unfinished = False

    def __init__(self, built: CheckpointBuilder) -> None:
        self.root = built.root
        self.isActive = True
        type(self).starts += 1

    @property
    def status(self) -> Mapping[str, Any]:
        return {"isTriggerActive": False, "message": "Waiting for data to arrive"}

    @property
    def lastProgress(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False
        if self.unfinished:
            (self.root / "offsets/6").write_bytes((self.root / "offsets/5").read_bytes())


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    Query.starts, Query.unfinished = 0, False
    return CheckpointBuilder(tmp_path / "ckpt", partitions=4, groups=KeyGroups(48, 12)).build()


def test_the_query_goes_on_with_the_new_number(built: CheckpointBuilder) -> None:
    query = Query(built)
    done = millpond.rescale_query(lambda: Query(built), query, partitions=8, checkpoint=built.root)
    assert not query.isActive and done.query.isActive and Query.starts == 2
    assert done.refused is None and done.report is not None and done.report.partitions == 8
    assert read_spark_metadata(built.storage).partitions == 8
    assert 0 <= done.gap_ms < 10_000


def test_what_can_be_told_beforehand_does_not_stop_it(built: CheckpointBuilder) -> None:
    before, query = tree(built.root), Query(built)
    wrong: list[tuple[int, dict[str, Any]]] = [
        (0, {}),
        (4, {}),
        (8, {"max_parallelism": 9}),
        (8, {"wait_s": -1}),
    ]
    wrong.append((8, {"file_sink": built.root / "no-sink"}))
    for partitions, options in wrong:
        with pytest.raises(MillpondError):
            millpond.rescale_query(
                lambda: Query(built), query, partitions=partitions, checkpoint=built.root, **options
            )
    assert query.isActive and Query.starts == 1 and tree(built.root) == before


def test_refused_it_goes_on_with_the_old_number(built: CheckpointBuilder) -> None:
    query = Query(built)
    (built.root / "state/0/2/6.changelog").unlink()
    done = millpond.rescale_query(lambda: Query(built), query, partitions=8, checkpoint=built.root)
    assert done.report is None and done.refused is not None
    assert done.refused.kind is ErrorKind.CHANGELOG_MISSING
    assert done.query.isActive and done.query is not query
    assert read_spark_metadata(built.storage).partitions == 4
    assert not (built.root / layout.RESCALE_JOURNAL_KEY).exists()


def test_a_batch_that_was_begun_is_finished_first(built: CheckpointBuilder) -> None:
    Query.unfinished = True
    done = millpond.rescale_query(
        lambda: Query(built), Query(built), partitions=8, checkpoint=built.root, wait_s=0
    )
    assert done.refused is not None and done.refused.kind is ErrorKind.BATCH_NOT_COMMITTED
    assert Query.starts == 6 and done.query.isActive


def test_the_query_itself_must_tell_where_it_writes(built: CheckpointBuilder) -> None:
    with pytest.raises(MillpondError, match="does not say where"):
        millpond.rescale_query(lambda: Query(built), Query(built), partitions=8)
