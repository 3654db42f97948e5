"""Stores of one executor that hold very different amounts share its memory budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.harness import Harness, Provider, Store, millponds_own, module_harness
from integration.store_cases import open_small

pytestmark = [pytest.mark.spark, millponds_own]

BUDGET_BYTES = 8 << 20
STORES = 8
MANY = 64  # each with a share that is less than what a batch may keep
ROWS = 4000  # of a batch: an eighth of the budget, as much as an equal share of it
BATCHES = 24

harness = module_harness


def _spills(store: Store) -> int:
    return int(store.metrics()["custom"]["millpondSpills"])


def _grow(provider: Provider, version: int, count: int = ROWS) -> Store:
    store = provider.store(version)
    first = version * count
    rows = [([k], [f"{k} " + "x" * 150]) for k in range(first, first + count)]
    store.put_many(rows)
    assert store.commit().version == version + 1
    return store


def test_a_large_store_has_what_small_ones_leave(harness: Harness, tmp_path: Path) -> None:
    """Each batch of the large one writes as much as an equal share of the budget."""
    providers = [open_small(harness, tmp_path / f"{i}", "8m") for i in range(STORES)]
    spills, most = 0, 0
    for version in range(BATCHES):
        stores = []
        for small in providers[1:]:
            stores.append(small.store(version))
            stores[-1].put([version], ["small"])
            stores[-1].commit()
        stores.append(_grow(providers[0], version))
        spills += _spills(stores[-1])
        used = sum(store.metrics()["memory_bytes"] for store in stores)
        assert used < BUDGET_BYTES * 5 / 4
        if version >= BATCHES // 2:
            most = max(most, stores[-1].metrics()["memory_bytes"])
    assert spills == 0, "a batch did not wait for the flush, but gave all its rows up"
    assert most > BUDGET_BYTES / 2
    read = providers[0].read_store(BATCHES)
    some = range(0, BATCHES * ROWS, 997)
    assert [read.get([k]) for k in some] == [[f"{k} " + "x" * 150] for k in some]
    for provider in providers:
        provider.close()


def test_two_large_stores_come_to_equal_parts(harness: Harness, tmp_path: Path) -> None:
    """The second one begins when the first one has the whole budget."""
    providers = [open_small(harness, tmp_path / f"{i}", "8m") for i in range(STORES)]
    first, second, *rest = providers
    idle = [one.store(0) for one in rest]
    for one in idle:
        one.put([0], ["small"])
        one.commit()
    for version in range(BATCHES // 2):
        store = _grow(first, version)
    before = store.metrics()["memory_bytes"]
    assert before > BUDGET_BYTES / 2
    spills = 0
    for version in range(BATCHES // 2, BATCHES):
        stores = [_grow(first, version), _grow(second, version - BATCHES // 2)]
        spills += _spills(stores[0])
    held = [store.metrics()["memory_bytes"] for store in stores]
    assert sum(held) < BUDGET_BYTES * 5 / 4
    assert min(held) > BUDGET_BYTES / 4, f"of {BUDGET_BYTES} they hold {held}"
    assert spills == 0
    for provider in providers:
        provider.close()


def test_many_stores_between_two_batches_hold_what_is_planned(
    harness: Harness, tmp_path: Path
) -> None:
    """A batch may keep more than a share while it runs. Nothing shrinks its store before the next
    one, and all of them may have ended.
    """
    budget, rows = 2 << 20, ROWS // 4
    providers = [open_small(harness, tmp_path / f"{i}", "2m") for i in range(MANY)]
    held = [0] * MANY
    spills = 0
    for version in range(2):
        for i, provider in enumerate(providers):
            store = _grow(provider, version, rows)
            held[i] = store.metrics()["memory_bytes"]
            assert sum(held) < 2 * budget + MANY * (64 << 10), f"after batch {version} of {i}"
            assert _spills(store) <= 1, "it moves to disk as a whole"
            spills += _spills(store)
    assert spills > MANY
    for provider in providers[::9]:
        read = provider.read_store(2)
        some = range(0, 2 * rows, 97)
        assert [read.get([k]) for k in some] == [[f"{k} " + "x" * 150] for k in some]
        read.release()
    for provider in providers:
        provider.close()
