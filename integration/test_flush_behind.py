"""A store that is short of memory flushes beside its batch. The batch neither waits nor depends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.harness import Harness, Provider, millponds_own, module_harness
from integration.provider import Store
from integration.store_cases import open_small, strings_of

pytestmark = [pytest.mark.spark, millponds_own]

ROWS = 500  # of a batch: a few hundredths of the budget
MOST_BATCHES = 60

harness = module_harness


class Growing:
    """A store that grows by a little with each version, and changes some of what it has."""

    def __init__(self, harness: Harness, checkpoint: Path) -> None:
        self.harness = harness
        self.checkpoint = checkpoint
        self.version = 0
        self.rows: dict[int, str] = {}
        self.provider = self.open()

    def open(self) -> Provider:
        """Return a new provider of the store."""
        return open_small(self.harness, self.checkpoint, "2m")

    def put(self, store: Store) -> dict[int, str]:
        """Write what the next version has. Return its rows."""
        first = self.version * ROWS
        changed = [*range(first, first + ROWS), *range(0, first, 97)]
        rows = {k: f"{self.version} {k}" for k in changed}
        store.put_many([([k], [v]) for k, v in rows.items()])
        return self.rows | rows

    def commit(self, store: Store, rows: dict[int, str]) -> None:
        """Commit the next version."""
        self.version += 1
        assert store.commit().version == self.version
        self.rows = rows

    def batch(self) -> Store:
        """Run a whole batch."""
        store = self.provider.store(self.version)
        self.commit(store, self.put(store))
        return store

    def until_short_of_memory(self) -> None:
        """Run batches until the store has rows on disk that memory drops for others."""
        for _ in range(MOST_BATCHES):
            if int(self.batch().metrics()["custom"]["millpondEvictedBytes"]) > 0:
                return
        raise AssertionError("memory dropped no rows")

    def until(self, begun: Callable[[], bool]) -> Store:
        """Run batches until one begins a flush beside itself. Return this batch."""
        for _ in range(MOST_BATCHES):
            store = self.provider.store(self.version)
            if begun():
                return store
            self.commit(store, self.put(store))
        raise AssertionError("no batch began a flush")

    def check(self) -> None:
        """Read all rows by a scan, and every tenth by a get."""
        store = self.provider.read_store(self.version)
        assert strings_of(store) == self.rows
        some = list(self.rows)[::10]
        assert [(store.get([k]) or [None])[0] for k in some] == [self.rows[k] for k in some]
        store.release()

    def close(self) -> None:
        """Close the provider."""
        self.provider.close()


@pytest.fixture
def growing(harness: Harness, tmp_path: Path) -> Iterator[Growing]:
    """Return a store of a new checkpoint that is short of memory."""
    made = Growing(harness, tmp_path / "checkpoint")
    made.until_short_of_memory()
    yield made
    made.close()


def _held(harness: Harness, growing: Growing) -> Store:
    """Return a batch whose flush is held in the middle."""
    harness.hold("flush.write")
    return growing.until(harness.is_holding)


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_batch_begins_and_ends_beside_a_flush(
    harness: Harness, growing: Growing, ends: str
) -> None:
    store = _held(harness, growing)
    rows = growing.put(store)
    if ends == "commit":
        growing.commit(store, rows)
    else:
        store.abort()
        growing.check()
        store = growing.provider.store(growing.version)
        growing.commit(store, growing.put(store))
    assert harness.is_holding(), "the batch waited for the flush"
    harness.let_go()
    for _ in range(3):
        growing.batch()
    growing.check()
    store = growing.provider.store(growing.version)
    store.abort()
    growing.provider.snapshot()
    growing.close()
    growing.provider = growing.open()
    growing.check()


# `test_flush_faults.py` has each point, with lists.
@pytest.mark.parametrize("point", quick_first(["flush.ingested", "flush.write", "disk.ingest"]))
def test_a_batch_outlives_a_flush_that_failed(
    harness: Harness, growing: Growing, point: str
) -> None:
    """The disk is full before the file is part of the disk tier, or nobody knows whether it is."""
    harness.arm(point, kind="LOCAL_DISK_FULL")
    store = growing.until(lambda: harness.passes() > 0)
    growing.commit(store, growing.put(store))
    harness.disarm()
    growing.check()
    for _ in range(3):
        growing.batch()
    growing.check()


@pytest.mark.deep
def test_a_kill_during_a_flush_loses_nothing(tmp_path: Path) -> None:
    killed = Harness(tmp_path)
    growing = Growing(killed, tmp_path / "checkpoint")
    growing.until_short_of_memory()
    store = _held(killed, growing)
    growing.put(store)
    killed.kill()
    growing.harness = Harness(tmp_path)
    try:
        growing.provider = growing.open()
        growing.check()
        growing.batch()
        growing.check()
        growing.close()
    finally:
        growing.harness.stop()
