"""The changelog of a large batch is written while the batch runs, and is as good as any other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.harness import (
    Harness,
    Numbered,
    Provider,
    ProviderError,
    Schema,
    millponds_own,
    module_harness,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.provider import Store
from integration.store_model import write_spark_metadata
from millpond.format.changelog import ChangelogReader, has_repeats

pytestmark = [pytest.mark.spark, millponds_own]

SCHEMA = Schema("k bigint", "v string")
ROWS = 60_000  # some times the number that may wait for the commit
BEFORE = Numbered(ROWS, "before", 20, first=0, step=2)
CHANGES = [
    Numbered(ROWS, "first", 20),
    Numbered(ROWS, "again", 30, first=1, step=7),
    Numbered(ROWS, "", first=2, step=11),
    # These end as the version before has them, or are new and go again.
    Numbered(ROWS, "before", 20, first=0, step=26),
    Numbered(ROWS, "", first=3, step=26),
]


harness = module_harness


@pytest.fixture(params=quick_first(["64m", "1m"]), ids=["memory", "spills"])
def provider(
    request: pytest.FixtureRequest, harness: Harness, tmp_path: Path
) -> Iterator[Provider]:
    """Return a provider whose version 1 has the rows of `BEFORE`."""
    write_spark_metadata(
        tmp_path, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
    )
    provider = _open(harness, tmp_path, request.param)
    store = provider.store(0)
    store.put_numbered(BEFORE)
    assert store.commit().version == 1
    yield provider
    provider.close()


def in_memory_and_on_disk(store: str) -> pytest.MarkDecorator:
    """Let a test be quick with both budgets of a fixture."""
    return pytest.mark.parametrize(store, ["64m", "1m"], ids=["memory", "spills"], indirect=True)


def _open(
    harness: Harness, checkpoint: Path, budget: str = "64m", schema: Schema = SCHEMA
) -> Provider:
    conf = short_conf({"millpond.memory.budget": budget, "millpond.gc.intervalMs": 0})
    return harness.open(
        checkpoint / "state",
        provider_class=MILLPOND,
        schema=schema,
        conf=conf | {"spark.sql.shuffle.partitions": "2"},
    )


def _change(provider: Provider) -> Store:
    store = provider.store(1)
    for layer in CHANGES:
        store.put_numbered(layer)
    return store


def _write(provider: Provider, version: int, *layers: Numbered) -> None:
    store = provider.store(version - 1)
    for layer in layers:
        store.put_numbered(layer)
    assert store.commit().version == version


def _unfinished(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / "state/0/0").glob(".staging-*"))


def _check(harness: Harness, checkpoint: Path, version: int = 2) -> None:
    """Read the version on another executor: from its changelogs."""
    other = _open(harness, checkpoint)
    store = other.store(version)
    count = store.check_numbered([BEFORE, *CHANGES] if version == 2 else [BEFORE])
    assert store.keys() == count
    store.abort()
    other.close()


@in_memory_and_on_disk("provider")
def test_it_grows_in_the_batch(harness: Harness, provider: Provider, tmp_path: Path) -> None:
    store = _change(provider)
    (growing,) = _unfinished(tmp_path)
    before_bytes = growing.stat().st_size
    assert store.commit().version == 2
    assert int(store.metrics()["custom"]["millpondChangelogAheadMs"]) > 0
    assert not _unfinished(tmp_path)
    path = tmp_path / "state/0/0/2.changelog"
    # Most of it was there.
    assert before_bytes > path.stat().st_size * 0.6
    with path.open("rb") as file:
        reader = ChangelogReader(file)
        keys = [record.key for record in reader]
    assert reader.header.version_id.version == 2
    assert has_repeats(path.read_bytes())
    # Of the keys that ended as they began, those are missing that no part of the file had.
    assert ROWS * 0.95 < len(set(keys)) <= ROWS
    assert ROWS < len(keys) < 2 * ROWS
    _check(harness, tmp_path)


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_the_larger_the_batch_the_less_is_left(provider: Provider, tmp_path: Path) -> None:
    """At most 4,096 of 240,000 rows wait for the commit."""
    store = provider.store(1)
    store.put_numbered(Numbered(4 * ROWS, "large", 20))
    (growing,) = _unfinished(tmp_path)
    before_bytes = growing.stat().st_size
    assert store.commit().version == 2
    path = tmp_path / "state/0/0/2.changelog"
    assert before_bytes > path.stat().st_size * (1 - 4096 / (4 * ROWS) - 0.01)


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_a_few_long_values_do_not_wait(provider: Provider, tmp_path: Path) -> None:
    """Of 400 values of 64 KiB at most 4 MiB wait for the commit, and a block that is not full."""
    store = provider.store(1)
    store.put_numbered(Numbered(400, "long", 65_536))
    (growing,) = _unfinished(tmp_path)
    before_bytes = growing.stat().st_size
    assert store.commit().version == 2
    path = tmp_path / "state/0/0/2.changelog"
    assert before_bytes > path.stat().st_size * 0.7


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_a_long_value_that_is_put_again_is_written_once(provider: Provider, tmp_path: Path) -> None:
    store = provider.store(1)
    for i in range(30):
        store.put_numbered(Numbered(4, f"again {i}", 262_144))
    assert not _unfinished(tmp_path)
    assert store.commit().version == 2


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_the_next_batch_keeps_as_little(provider: Provider, tmp_path: Path) -> None:
    """After a large batch, one of 5,000 rows is written before its commit."""
    _write(provider, 2, Numbered(4 * ROWS, "large", 20))
    store = provider.store(2)
    store.put_numbered(Numbered(5_000, "next", 20))
    assert len(_unfinished(tmp_path)) == 1
    assert store.commit().version == 3


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_rows_that_change_again_wait_longer(provider: Provider, tmp_path: Path) -> None:
    """Each part of the file would have the same rows again."""
    _write(provider, 2, Numbered(4 * ROWS, "large", 20))
    _write(provider, 3, *(Numbered(5_000, f"again {i}", 20) for i in range(20)))
    store = provider.store(3)
    store.put_numbered(Numbered(5_000, "next", 20))
    assert not _unfinished(tmp_path)
    assert store.commit().version == 4


def test_an_abort_throws_it_away(harness: Harness, provider: Provider, tmp_path: Path) -> None:
    store = _change(provider)
    assert len(_unfinished(tmp_path)) == 1
    store.abort()
    assert not _unfinished(tmp_path)
    store = provider.store(1)
    store.check_numbered([BEFORE])
    store.put_numbered(CHANGES[0])
    store.abort()
    assert _change(provider).commit().version == 2
    _check(harness, tmp_path)


def test_the_next_batch_knows_nothing_of_it(
    harness: Harness, provider: Provider, tmp_path: Path
) -> None:
    assert _change(provider).commit().version == 2
    store = provider.store(2)
    store.put_numbered(Numbered(100, "later", 20))
    assert store.commit().version == 3
    # A rest below a millisecond counts with the next batch.
    assert int(store.metrics()["custom"]["millpondChangelogAheadMs"]) <= 1
    with (tmp_path / "state/0/0/3.changelog").open("rb") as file:
        reader = ChangelogReader(file)
        assert len(list(reader)) == 100
    other = _open(harness, tmp_path)
    store = other.store(3)
    store.check_numbered([BEFORE, *CHANGES, Numbered(100, "later", 20)])
    store.abort()
    other.close()


@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_a_file_that_was_collected_is_written_again(
    harness: Harness, provider: Provider, tmp_path: Path
) -> None:
    store = _change(provider)
    (growing,) = _unfinished(tmp_path)
    growing.unlink()
    store.put_numbered(Numbered(ROWS, "before", 20, first=0, step=26))
    assert store.commit().version == 2
    _check(harness, tmp_path)


def test_maintenance_keeps_it_young(harness: Harness, provider: Provider, tmp_path: Path) -> None:
    """A batch may wait for rows for longer than the grace period."""
    store = _change(provider)
    (growing,) = _unfinished(tmp_path)
    os.utime(growing, (0, 0))
    provider.cleanup()
    assert growing.stat().st_mtime > time.time() - 60
    assert store.commit().version == 2
    _check(harness, tmp_path)


@pytest.mark.parametrize(
    ("points", "last"),
    [("changelog.write", 3), ("changelog.write changelog.close", 4)],
    ids=["write", "write-and-close"],
)
@pytest.mark.parametrize("provider", ["64m"], ids=["memory"], indirect=True)
def test_a_disk_that_fails_in_the_batch_does_not_end_it(
    harness: Harness, provider: Provider, tmp_path: Path, points: str, last: int
) -> None:
    """NFS writes when a file is closed, and says only then that a quota is used up."""
    harness.arm(points, kind="IO", first=3, last=last)
    store = _change(provider)
    assert harness.disarm() == last, "the batch went on to write"
    assert not _unfinished(tmp_path)
    assert store.commit().version == 2
    _check(harness, tmp_path)


@in_memory_and_on_disk("provider")
def test_a_commit_that_fails_may_follow_or_be_taken_back(
    harness: Harness, provider: Provider, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = _change(provider)
    harness.arm("commit.publish", kind="STORAGE_UNAVAILABLE")
    with pytest.raises(ProviderError):
        store.commit()
    harness.disarm()
    assert not _unfinished(tmp_path)
    if "spills" in request.node.name:
        # Memory lacks a part of the batch. The next attempt begins anew.
        with pytest.raises(ProviderError):
            store.commit()
        store.abort()
        store = _change(provider)
    assert store.commit().version == 2
    _check(harness, tmp_path)


LISTS = Schema("k string", "v string", multi=True)
LONG = 64 << 10  # bytes of a value: 64 of them are more than may wait for the commit
OLD = ["x", "y"]  # the list of each key in version 1


@pytest.fixture(params=quick_first(["64m", "1m"]), ids=["memory", "spills"])
def lists(request: pytest.FixtureRequest, harness: Harness, tmp_path: Path) -> Iterator[Provider]:
    """Return a provider whose version 1 has a list for each of ten keys."""
    write_spark_metadata(
        tmp_path, operator_name="transformWithStateExec", partitions=2, provider_class=MILLPOND
    )
    provider = _open(harness, tmp_path, request.param, LISTS)
    store = provider.store(0)
    for k in range(10):
        store.put_list([str(k)], [[v] for v in OLD])
    assert store.commit().version == 1
    yield provider
    provider.close()


def _grow(store: Store, expected: dict[str, list[str]], keys: str, count: int = 8) -> None:
    for _ in range(count):
        for k in keys:
            store.merge_blanks([k], LONG)
            expected[k] = [*expected.get(k, []), " " * LONG]


def _change_lists(store: Store) -> dict[str, list[str]]:
    """Change lists in every order of what can be done to one. Return how they end."""
    expected = {str(k): list(OLD) for k in range(10)}
    _grow(store, expected, "0123456789n")  # `n` is new
    for k in "012":
        store.merge([k], ["again"])
        expected[k].append("again")
    for k in "23":
        store.put_list([k], [["p"], ["q"]])
        expected[k] = ["p", "q"]
    for k in "4n":
        store.remove([k])
        del expected[k]
    for k in "5":
        store.remove([k])
        store.merge_list([k], [["r"], ["s"]])
        expected[k] = ["r", "s"]
    _grow(store, expected, "36789")
    for k in "0357n":
        store.merge_list([k], [["late"], [k]])
        expected[k] = [*expected.get(k, []), "late", k]
    return expected


def _check_lists(
    harness: Harness, checkpoint: Path, version: int, expected: dict[str, list[str]]
) -> None:
    """Read the version on another executor: from its changelogs."""
    other = _open(harness, checkpoint, schema=LISTS)
    store = other.store(version)
    assert store.keys() == len(expected)
    for k in "0123456789n":
        assert [v for (v,) in store.values([k])] == expected.get(k, []), k
    store.abort()
    other.close()


@in_memory_and_on_disk("lists")
def test_lists_are_written_in_the_batch(harness: Harness, lists: Provider, tmp_path: Path) -> None:
    """What a list got since the last part, and not the whole list again."""
    store = lists.store(1)
    expected = _change_lists(store)
    (growing,) = _unfinished(tmp_path)
    before_bytes = growing.stat().st_size
    assert store.commit().version == 2
    path = tmp_path / "state/0/0/2.changelog"
    assert before_bytes > 4096  # with room for a header
    with path.open("rb") as file:
        records = [
            (record.op, record.key, len(record.value or b"")) for record in ChangelogReader(file)
        ]
    # Each value is there once at most, and all that are left are there.
    left = sum(len(v) for values in expected.values() for v in values)
    appended = (8 * 11 + 8 * 5) * LONG
    assert left <= sum(size for _, _, size in records) < appended * 1.05
    keys = [key for _, key, _ in records]
    assert len(keys) > len(set(keys)) == 11
    _check_lists(harness, tmp_path, 2, expected)
    # The next batch appends to what this one left.
    store = lists.store(2)
    _grow(store, expected, "0n", count=40)
    assert store.commit().version == 3
    _check_lists(harness, tmp_path, 3, expected)


def test_an_abort_takes_lists_back(harness: Harness, lists: Provider, tmp_path: Path) -> None:
    store = lists.store(1)
    _change_lists(store)
    assert len(_unfinished(tmp_path)) == 1
    store.abort()
    assert not _unfinished(tmp_path)
    store = lists.store(1)
    for k in range(10):
        assert [v for (v,) in store.values([str(k)])] == OLD
    assert store.values(["n"]) == []
    expected = _change_lists(store)
    assert store.commit().version == 2
    _check_lists(harness, tmp_path, 2, expected)


@pytest.mark.parametrize("lists", ["64m"], ids=["memory"], indirect=True)
def test_the_commit_writes_lists_whose_file_was_lost(
    harness: Harness, lists: Provider, tmp_path: Path
) -> None:
    """Once because it was deleted, once because the disk refused the second part."""
    store = lists.store(1)
    expected = _change_lists(store)
    (growing,) = _unfinished(tmp_path)
    growing.unlink()
    _grow(store, expected, "01")
    assert store.commit().version == 2
    _check_lists(harness, tmp_path, 2, expected)
    store = lists.store(2)
    _grow(store, expected, "0123456789", count=7)
    assert len(_unfinished(tmp_path)) == 1
    harness.arm("changelog.write", kind="IO")
    _grow(store, expected, "0123456789", count=2)
    harness.disarm()
    assert not _unfinished(tmp_path)
    store.merge(["0"], ["last"])
    expected["0"].append("last")
    assert store.commit().version == 3
    _check_lists(harness, tmp_path, 3, expected)


@pytest.mark.deep
def test_kill_9_in_the_batch_leaves_what_a_collection_removes(tmp_path: Path) -> None:
    write_spark_metadata(
        tmp_path, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
    )
    harness = Harness(tmp_path)
    provider = _open(harness, tmp_path)
    store = provider.store(0)
    store.put_numbered(BEFORE)
    store.commit()
    _change(provider)
    (left,) = _unfinished(tmp_path)
    harness.kill()

    harness = Harness(tmp_path)
    provider = _open(harness, tmp_path)
    store = _change(provider)
    assert len(_unfinished(tmp_path)) == 2
    assert store.commit().version == 2
    os.utime(left, (0, 0))
    store = provider.store(2)
    store.check_numbered([BEFORE, *CHANGES])
    provider.cleanup()
    assert not _unfinished(tmp_path)
    store.abort()
    harness.stop()
