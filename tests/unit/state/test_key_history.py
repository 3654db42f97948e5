"""Histories of keys: what they ask for, and what they tell of batches that are gone or damaged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from integration.depth import quick_first
from millpond import savepoint, state
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId, VersionId
from tests.checkpoints import version_id
from tests.join_checkpoints import ROWS, JoinBuilder
from tests.refusals import refused
from tests.row_checkpoints import HashedBuilder, ManyPartitions


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_it_asks_for_the_partition_of_the_key(
    tmp_path: Path, asked: Counter[str], spark_format: int
) -> None:
    """It planned all stores of the query, for each batch."""
    counts = []
    for partitions in (4, 40):
        root = tmp_path / f"query-{partitions}"
        built = ManyPartitions(root, partitions=partitions, spark_format=spark_format)
        built.build(3, (1,))
        key = built._number(StoreId(0, 2), 1)
        asked.clear()
        found = state.history(root, key={"k": key})
        counts.append(+asked)
        assert found.batches == (0, 1, 2) and found.unreadable == ()
        assert [change.what for change in found.changes] == ["first seen"]
    assert counts[0] == counts[1]


def _changelog(built: HashedBuilder, store: StoreId, version: int) -> Path:
    id = VersionId(version, version_id(store, version))
    return built.root / layout.changelog_key(store, id, built.spark_format)


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_batches_that_have_expired_are_not_there(tmp_path: Path, spark_format: int) -> None:
    built = HashedBuilder(tmp_path / "query", spark_format=spark_format)
    built.build(6, (3, 5))
    for store in built.stores():
        for version in (1, 2, 3):
            _changelog(built, store, version).unlink()
    found = state.history(built.root, key={"k": built._number(built.stores()[0], 4)})
    assert found.batches == (2, 3, 4, 5) and found.unreadable == ()
    assert [(c.batch, c.what) for c in found.changes] == [(2, "absent"), (3, "new")]


def test_damage_of_the_key_is_told_and_no_other(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query", spark_format=2)
    built.build(6, (1, 5))
    store, other = built.stores()
    _changelog(built, store, 2).unlink()
    keys = [{"k": built._number(one, 4)} for one in (store, other)]
    whole = state.history(built.root, key=keys[1])
    assert whole.batches == tuple(range(6)) and whole.unreadable == ()
    found = state.history(built.root, key=keys[0])
    assert found.batches == (0, 4, 5)
    assert [batch for batch, _ in found.unreadable] == [1, 2, 3]
    assert all(why.startswith("CHANGELOG_MISSING: ") for _, why in found.unreadable)
    _changelog(built, store, 6).unlink()
    told = refused(ErrorKind.CHANGELOG_MISSING, state.history, built.root, key=keys[0])
    assert "Batch 4 is the newest that is whole" in told.hint


def test_a_query_without_records_of_its_operators(tmp_path: Path) -> None:
    """An earlier version of Millpond began it: only a look at the query finds the operators."""
    built = HashedBuilder(tmp_path / "query")
    built.build(4, (2,))
    (built.root / layout.operator_record_key(0)).unlink()
    found = state.history(built.root, key={"k": built._number(built.stores()[1], 2)})
    assert found.batches == (0, 1, 2, 3) and found.unreadable == ()
    # Each third version writes the key of the version before it again.
    assert [(c.batch, c.what) for c in found.changes] == [
        (0, "absent"),
        (1, "new"),
        (2, "changed"),
    ]


def test_a_savepoint_of_another_query(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query").build(3, ())
    other = HashedBuilder(tmp_path / "other").build(3, ())
    other.storage.put_bytes(spark_names.QUERY_METADATA_KEY, b'{"id":"of-another-query"}')
    for one in (built, other):
        savepoint.create(one.root, tmp_path / f"saved-{one.root.name}")
    key = {"k": 1}
    told = refused(
        ErrorKind.INVALID_ARGUMENT,
        state.history,
        built.root,
        key=key,
        savepoint=[tmp_path / "saved-other"],
    )
    assert "is a savepoint of another query" in told.message
    state.history(built.root, key=key, savepoint=[tmp_path / "saved-query"])


def test_a_join_by_its_own_names(tmp_path: Path) -> None:
    built = JoinBuilder(tmp_path / "query", partitions=4)
    built.build(3, ())
    k = built._number(built.stores()[0], 2)
    found = state.history(built.root, key={"id": k}, store=ROWS)
    assert found.changes[-1].after[0]["value"]["id"] == k
