"""Batches that outgrow the memory budget, and stores that keep all rows in memory."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from integration.harness import (
    Harness,
    Provider,
    ProviderError,
    Schema,
    Store,
    millponds_own,
    module_harness,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.pressed import BUDGET, ROWS, Bench, custom, store_of_each_kind
from integration.store_cases import PLAIN, open_provider, write
from millpond.format import layout
from millpond.format.format_file import decode_format, encode_format

pytestmark = [pytest.mark.spark, millponds_own]

harness = module_harness
bench = store_of_each_kind


def test_a_store_whose_every_batch_spills_takes_snapshots(bench: Bench) -> None:
    """Maintenance comes in the middle of batches that spill, and between them."""
    provider = bench.provider()
    state: dict[int, str] = {}
    for version in range(4):
        store = provider.store(version, bench.ids[version])
        state = bench.fill(store, state, str(version))
        provider.snapshot()
        bench.commit(store, state)
        assert custom(store, "millpondSpills") > 0
        provider.snapshot()
    provider.close()
    manifests = sorted(p.name for p in (bench.checkpoint / "state/0/0").glob("*.manifest"))
    assert [int(name.split(".")[0].split("_")[0]) for name in manifests] == [1, 2, 3]
    for version in (2, 3, 4):
        bench.check(version)


def test_a_batch_larger_than_the_budget_spills_and_goes_on(bench: Bench) -> None:
    provider = bench.provider()
    store = provider.store(0)
    state = bench.fill(store, {}, "one")
    assert bench.rows(store) == state
    got = [store.get(bench.key(i)) for i in range(0, ROWS, 97)]
    assert [g and g[0] for g in got] == [state.get(i) for i in range(0, ROWS, 97)]
    bench.commit(store, state)
    assert custom(store, "millpondSpills") >= 2
    # A version that is not proven committed is in no snapshot, even if the disk tier has a part.
    provider.snapshot()
    assert not list(bench.checkpoint.glob("state/0/0/*.manifest"))
    store = provider.store(1, bench.ids[1])
    state = bench.fill(store, state, "two")
    bench.commit(store, state)
    provider.snapshot()
    store = provider.store(2, bench.ids[2])
    store.abort()
    provider.snapshot()
    assert list(bench.checkpoint.glob("state/0/0/2*.manifest"))
    provider.close()
    bench.check(1)
    bench.check(2)


def test_a_spilled_batch_can_be_aborted_and_a_spilled_version_taken_back(bench: Bench) -> None:
    provider = bench.provider()
    store = provider.store(0)
    few = {i: f"row {i}" for i in range(50)}
    bench.put(store, few)
    bench.commit(store, few)
    store = provider.store(1, bench.ids[1])
    bench.fill(store, few, "lost")
    store.abort()
    store = provider.store(1, bench.ids[1])
    assert bench.rows(store) == few
    state = bench.fill(store, few, "kept")
    bench.commit(store, state)
    # Another task of the batch failed. Spark asks for the version before, and runs the batch again.
    store = provider.store(1, bench.ids[1])
    assert bench.rows(store) == few
    bench.put(store, {7: "seven"})
    del bench.versions[2:], bench.ids[2:]
    bench.commit(store, {**few, 7: "seven"})
    provider.close()
    bench.check(1)
    bench.check(2)


def test_iterators_outlive_a_spill(bench: Bench) -> None:
    provider = bench.provider()
    store = provider.store(0)
    few = {i: f"row {i}" for i in range(0, 600, 2)}
    bench.put(store, few)
    bench.commit(store, few)
    store = provider.store(1, bench.ids[1])
    cursor = store.iterate()
    seen = cursor.next(10, remove=True)
    state = bench.fill(
        store, {i: v for i, v in few.items() if i not in {bench.number(k) for k, _ in seen}}, "new"
    )
    seen += cursor.next(-1)
    found = {bench.number(k): str(v[0]) for k, v in seen}
    assert len(found) == len(seen)
    assert {i: found.get(i) for i in few} == few, "an iterator must yield its first rows"
    cursor.close()
    assert bench.rows(store) == state
    bench.commit(store, state)
    assert custom(store, "millpondSpills") >= 1
    provider.close()
    bench.check(2)


def test_a_store_gives_memory_back_while_what_became_the_write_store_is_read(
    bench: Bench, tmp_path: Path
) -> None:
    """Session windows read by an iterator of the read store, and then write to that store."""
    budget = {"memory.budget": "1m"}

    def fill(of: Bench, store: Store, memory_bytes: int) -> dict[int, str]:
        rows: dict[int, str] = {}
        while store.metrics()["memory_bytes"] < memory_bytes:
            more = {i: f"row {i} " + "x" * 130 for i in range(len(rows), len(rows) + 100)}
            of.put(store, more)
            rows |= more
        return rows

    provider = bench.provider(**budget)
    store = provider.store(0)
    rows = fill(bench, store, 750_000)
    bench.commit(store, rows)
    other = replace(bench, checkpoint=tmp_path / "other", ids=[None], versions=[{}])
    neighbour = other.provider(**budget)
    busy = neighbour.store(0)
    fill(other, busy, 500_000)
    read = provider.read_store(1, bench.ids[1])
    cursor = read.iterate()
    seen = cursor.next(10)
    store = provider.upgrade(read, 1, bench.ids[1])
    changed = dict.fromkeys(range(0, len(rows), 2), "changed")
    bench.put(store, changed)
    state = rows | changed
    for i in range(1, len(rows), 10):
        store.remove(bench.key(i))
        del state[i]
    seen += cursor.next(-1)
    assert {bench.number(k): str(v[0]) for k, v in seen} == rows and len(seen) == len(rows)
    assert bench.rows(store) == state
    bench.commit(store, state)
    assert custom(store, "millpondShrinks") == 1
    busy.abort()
    neighbour.close()
    provider.close()
    bench.check(2)


def test_lists_of_values_survive_a_spill(harness: Harness, tmp_path: Path) -> None:
    bench = Bench(harness, tmp_path / "checkpoint")
    schema = Schema(multi=True)
    conf = short_conf({"millpond.memory.budget": BUDGET, "minDeltasForSnapshot": 1}) | {
        "spark.sql.shuffle.partitions": "1"
    }

    def provider() -> Provider:
        return harness.open(
            bench.checkpoint / "state", provider_class=MILLPOND, schema=schema, conf=conf
        )

    def values(store: Store, i: int) -> list[str]:
        return [str(v[0]) for v in harness.call("values", s=store.name, k=bench.key(i))]

    rng = random.Random(5)
    lists: dict[int, list[str]] = {}
    first = provider()
    for version in range(3):
        store = first.store(version)
        for n in range(2500):
            i, value = rng.randrange(300), f"{version} {n} " + "y" * 60
            harness.call("merge", s=store.name, k=bench.key(i), v=[value, n])
            lists.setdefault(i, []).append(value)
        assert values(store, 17) == lists[17]
        store.commit()
        assert custom(store, "millpondSpills") >= 1
        first.snapshot()
    first.close()
    second = provider()
    read = second.read_store(3)
    assert {i: values(read, i) for i in lists} == lists
    read.release()
    second.close()


def test_a_large_family_is_dropped_within_the_budget(harness: Harness, tmp_path: Path) -> None:
    """Each of its rows on disk becomes a delete in memory, which would take several times as much.

    The rows of the other family stay.
    """
    conf = {"millpond.memory.budget": "1m", "millpond.restore.warmUp": "false"}
    families = {"dropped": PLAIN, "kept": PLAIN}
    kept = [([f"kept {i}", i], ["x"]) for i in range(100)]
    provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 0, families)
    store.put_many([([f"dropped {i}", i], ["x"]) for i in range(60_000)], cf="dropped")
    store.put_many(kept, cf="kept")
    store.commit()
    provider.close()
    provider = open_provider(harness, tmp_path, conf=conf)
    for _ in range(2):  # as if the task had failed
        store = write(provider, 1, families)
        store.put(["dropped in this batch", 1], ["x"], cf="dropped")
        assert store.remove_cf("dropped")
        assert store.metrics()["memory_bytes"] < 4 << 20
        store.abort()
    store = write(provider, 1, families)
    assert store.remove_cf("dropped")
    store.commit()
    provider.snapshot()
    for reopens in (False, True):
        if reopens:
            provider.close()
            provider = open_provider(harness, tmp_path, conf=conf)
        store = write(provider, 2, families)
        assert store.scan(cf="dropped") == []
        assert sorted(store.scan(cf="kept")) == sorted(kept)
        store.abort()
    provider.close()


def test_eviction_keeps_to_the_budget_and_loses_nothing(bench: Bench) -> None:
    """State is several times the budget, and batches are small.

    Rows come and go between memory and disk. Nothing spills.
    """
    provider = bench.provider()
    store = provider.store(0)
    state = {i: f"row {i} " + "z" * 40 for i in range(ROWS)}
    bench.put(store, state)
    bench.commit(store, state)
    rng = random.Random(3)
    evicted = 0
    for version in range(1, 12):
        store = provider.store(version, bench.ids[version])
        for i in rng.sample(range(ROWS), 300):
            got = store.get(bench.key(i))
            assert (got and got[0]) == state[i]
            bench.put(store, {i: f"{version} {i}"})
            state = {**state, i: f"{version} {i}"}
        bench.commit(store, state)
        assert custom(store, "millpondSpills") == 0
        evicted += custom(store, "millpondEvictedBytes")
        assert store.metrics()["memory_bytes"] < 2 * 256 * 1024
        if version % 4 == 0:
            provider.snapshot()
    assert evicted > 0
    provider.close()
    bench.check(11)


def test_heap_and_rocksdb_read_each_others_state(bench: Bench) -> None:
    state: dict[int, str] = {}
    for version, backend in enumerate(("heap", "rocksdb", "heap", "heap")):
        provider = bench.provider(backend=backend, **{"memory.budget": "64m"})
        store = provider.store(version, bench.ids[version])
        assert bench.rows(store) == state
        state = bench.fill(store, state, backend)
        bench.commit(store, state)
        store = provider.store(version + 1, bench.ids[version + 1])
        store.abort()
        provider.snapshot()
        assert list(bench.checkpoint.glob(f"state/0/0/{version + 1}*.manifest"))
        assert custom(store, "millpondDiskReads") == 0 or backend == "rocksdb"
        provider.close()
    for version in range(5):
        bench.check(version, backend="heap", **{"memory.budget": "64m"})


def test_heap_refuses_what_exceeds_the_budget(harness: Harness, tmp_path: Path) -> None:
    bench = Bench(harness, tmp_path / "checkpoint")
    provider = bench.provider(backend="heap")
    store = provider.store(0)
    few = {i: f"row {i}" for i in range(50)}
    bench.put(store, few)
    bench.commit(store, few)
    store = provider.store(1)
    with pytest.raises(ProviderError, match="MILLPOND_MEMORY_EXHAUSTED") as caught:
        bench.fill(store, few, "much")
    assert "backend" in caught.value.text and "memory.budget" in caught.value.text
    store.abort()
    store = provider.store(1)
    assert bench.rows(store) == few, "the store must still have the last version"
    store.abort()
    provider.close()
    # Do the same batch on the other backend.
    provider = bench.provider()
    store = provider.store(1)
    state = bench.fill(store, few, "much")
    bench.commit(store, state)
    store = provider.store(2)
    store.abort()
    provider.snapshot()
    provider.close()
    # The Spark checkpoint now has a backend. One session sets none. The next one sets its own.
    path = bench.checkpoint / layout.FORMAT_KEY
    path.write_bytes(encode_format(replace(decode_format(path.read_bytes()), backend="heap")))
    provider = bench.provider()
    with pytest.raises(ProviderError, match="MILLPOND_MEMORY_EXHAUSTED"):
        provider.store(2)
    provider.close()
    bench.check(2, backend="rocksdb")


def test_a_load_into_memory_that_failed_leaves_nothing(harness: Harness, tmp_path: Path) -> None:
    """Neither rows that the next load would find, nor memory that other stores need."""
    bench = Bench(harness, tmp_path / "checkpoint")
    large = {"backend": "heap", "memory.budget": "64m"}
    state: dict[int, str] = {}
    provider = bench.provider(**large)
    for version in range(3):
        store = provider.store(version, bench.ids[version])
        state = bench.fill(store, state, f"version {version + 1}")
        bench.commit(store, state)
        if version < 2:
            provider.store(version + 1, bench.ids[version + 1]).abort()
            provider.snapshot()
    provider.close()
    provider = bench.provider(**large)
    for point, first in (("memory.allocate", 12), ("load.replay", 4)):
        harness.arm(point, kind="STORAGE_UNAVAILABLE", first=first, last=1_000_000)
        with pytest.raises(ProviderError, match="a fault of the test"):
            provider.read_store(3, bench.ids[3])
        assert harness.disarm() >= first, point
        for version in (3, 1):
            store = provider.read_store(version, bench.ids[version])
            assert bench.rows(store) == bench.versions[version]
            store.abort()
    provider.close()
    fails = bench.provider(backend="heap")
    with pytest.raises(ProviderError, match="MILLPOND_MEMORY_EXHAUSTED"):
        fails.read_store(3, bench.ids[3])
    other = Bench(harness, tmp_path / "other")
    neighbour = other.provider(backend="heap")
    store = neighbour.store(0)
    some = {i: f"row {i}" for i in range(1700)}  # more than half of the budget
    other.put(store, some)
    other.commit(store, some)
    neighbour.close()
    fails.close()


@pytest.mark.deep
def test_stores_with_different_budgets_share_one(tmp_path: Path) -> None:
    """The store that was opened last decides the limit, also for a batch that runs already.

    Earlier versions gave each limit a budget of its own, and their sum could be used.
    """
    harness = Harness(tmp_path, conf={"spark.millpond.harness.log": "WARN"})
    try:
        for megabytes in (6, 1):
            _share(harness, tmp_path / str(megabytes), megabytes)
    finally:
        harness.stop()


def test_a_batch_beside_many_stores_spills_in_parts_that_are_worth_it(
    harness: Harness, tmp_path: Path
) -> None:
    """Where idle stores fill the budget, a share may be less than empty tables take. Each row was a
    spill then.
    """
    first = Bench(harness, tmp_path / "first")
    full = replace(first, checkpoint=tmp_path / "full", ids=[None], versions=[{}])
    beside = [full.provider(**{"memory.budget": "8m"})]
    idle = beside[0].store(0)
    full.put(idle, {i: f"idle {i} " + "y" * 500 for i in range(2000)})
    idle.commit()
    for i in range(100):
        other = replace(first, checkpoint=tmp_path / f"{i}", ids=[None], versions=[{}])
        beside.append(other.provider())
    provider = first.provider()
    store = provider.store(0)
    rows = {i: f"row {i} " + "x" * 100 for i in range(ROWS)}
    first.put(store, rows)
    spills = custom(store, "millpondSpills")
    first.commit(store, rows)
    for one in beside:
        one.close()
    provider.close()
    first.check(1)
    assert 0 < spills < 40


def _share(harness: Harness, directory: Path, megabytes: int) -> None:
    """Run a batch of a store with 4 MiB, and of one that has `megabytes` and opens meanwhile."""
    first = Bench(harness, directory / "first")
    provider = first.provider(**{"memory.budget": "4m"})
    running = provider.store(0)
    state = {i: f"row {i} " + "x" * 200 for i in range(10_000)}
    first.put(running, state)
    assert 2 << 20 < running.metrics()["memory_bytes"] < 4 << 20
    assert custom(running, "millpondSpills") == 0

    other = replace(first, checkpoint=directory / "second", ids=[None], versions=[{}])
    neighbour = other.provider(**{"memory.budget": f"{megabytes}m"})
    store = neighbour.store(0)
    rows = {i: f"other {i} " + "y" * 200 for i in range(10_000)}
    other.put(store, rows)
    more = {i: f"again {i} " + "x" * 200 for i in range(0, 10_000, 2)}
    first.put(running, more)
    told = running.metrics()
    used = told["memory_bytes"] + store.metrics()["memory_bytes"]
    limit = megabytes << 20
    assert used < limit + (1 << 20), "the limit holds for both together"
    said = f'event=memory_budget_changed bytes={limit} reason="it was {4 << 20} bytes'
    assert said in harness.log_path.read_text()
    first.commit(running, state | more)
    other.commit(store, rows)
    if megabytes == 1:
        assert int(told["custom"]["millpondSpills"]) > 0, "the batch that ran already gave way"
    neighbour.close()
    provider.close()
    first.check(1)
    other.check(1)
