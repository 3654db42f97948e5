# SPDX-License-Identifier: Apache-2.0
"""Stores of a run that has ended beside those of the next run in the same executor."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.harness import Harness, ProviderError
from integration.processes import wait_until
from integration.provider import Commit, Provider, Store
from integration.store_cases import PLAIN, open_provider
from millpond.format import layout

_ROWS = 2000
# Less than the rows of two runs.
_HEAP = {"millpond.backend": "heap", "millpond.memory.budget": "320k"}


@pytest.fixture(scope="module")
def harness(own_harness: Harness) -> Harness:
    """Return a JVM whose memory only this module's stores share."""
    return own_harness


@contextmanager
def _run(
    harness: Harness,
    checkpoint: Path,
    *,
    run_id: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[Provider]:
    provider = open_provider(
        harness, checkpoint, schema=PLAIN, operator="dedupe", run_id=run_id, conf=conf
    )
    yield provider
    provider.close()


@contextmanager
def _two_runs(
    harness: Harness, checkpoint: Path, conf: Mapping[str, str] | None = None
) -> Iterator[tuple[Provider, Provider]]:
    with (
        _run(harness, checkpoint, conf=conf) as first,
        _run(harness, checkpoint, conf=conf) as second,
    ):
        yield first, second


def _has_its_rows_alone(store: Store) -> None:
    """Check what a store on the heap takes: more than half of the memory."""
    assert 160 << 10 < store.metrics()["memory_bytes"] < 320 << 10


def _held_flush(harness: Harness, provider: Provider) -> str:
    """Begin a snapshot whose flush is held. Return its name, for `join`."""
    harness.hold("flush.done")
    snapshot = harness.begin("snapshot", p=provider.name)
    wait_until(harness.is_holding, seconds=60, what="the flush")
    return snapshot


def _batch(provider: Provider, before: Commit | None) -> Commit:
    """Make the version after `before`. Each has its number in every row."""
    version = 0 if before is None else before.version
    store = provider.store(version, None if before is None else before.id)
    for n in range(_ROWS):
        store.put([f"key {n}", n], [f"version {version + 1}"])
    return store.commit()


def _has(provider: Provider, at: Commit) -> bool:
    """Return whether a store has a version in memory. Meanwhile it must not be loaded."""
    provider.harness.arm("load.open", kind="STORAGE_UNAVAILABLE", last=1_000_000)
    try:
        provider.read_store(at.version, at.id).abort()
    except ProviderError as e:
        assert "STORAGE_UNAVAILABLE" in e.text
        return False
    finally:
        provider.harness.disarm()
    return True


def _check(provider: Provider, at: Commit) -> None:
    store = provider.read_store(at.version, at.id)
    rows = {tuple(key): value for key, value in store.scan()}
    assert rows == {(f"key {n}", n): [f"version {at.version}"] for n in range(_ROWS)}
    store.abort()


def test_a_run_gives_its_rows_up_when_the_next_one_writes(harness: Harness, tmp_path: Path) -> None:
    """Spark closes the stores of the first one up to two minutes later."""
    with _two_runs(harness, tmp_path / "query") as (first, second):
        one = _batch(first, None)
        _check(second, one)
        assert _has(first, one), "a reader took the rows of the query"
        two = _batch(second, one)
        assert not _has(first, one)
        # maintenance of the first run goes on until Spark closes it
        first.snapshot()
        first.cleanup()
        assert _has(second, two)
        # a task of the first run that comes late
        _check(first, one)
        second.snapshot()
        three = _batch(second, two)
        assert _has(second, three)
        _check(second, three)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_runs_that_end_before_maintenance_collect(
    harness: Harness, tmp_path: Path, spark_format: int
) -> None:
    """As those of Spark's trigger `AvailableNow`: its first maintenance comes after a minute. No
    run deleted anything, and files grew without bound.
    """
    state = tmp_path / "query" / "state"

    def there() -> list[tuple[int, bool]]:
        """Return the version of each file, and whether it is a manifest."""
        keys = (layout.parse_key(f"state/{path.relative_to(state)}") for path in state.rglob("*"))
        return sorted(
            (key.file.version.version, isinstance(key.file, layout.ManifestFile))
            for key in keys
            if key is not None and isinstance(key.file, layout.ChangelogFile | layout.ManifestFile)
        )

    at: Commit | None = None
    for version in range(7):
        conf = {"checkpointFormatVersion": str(spark_format)}
        with _run(harness, tmp_path / "query", conf=conf) as run:
            store = run.store(version, None if at is None else at.id, force_snapshot=True)
            store.put(["key", 1], [f"{version}"])
            at = store.commit()
            # The oldest of the two retained versions needs its manifest alone. The run proves the
            # version before its own: of that it makes a snapshot.
            manifests = [(v, True) for v in range(max(1, version - 1), version + 1)]
            changelogs = [(v, False) for v in range(max(1, version), version + 2)]

            def is_collected(
                expected: Sequence[tuple[int, bool]] = (*manifests, *changelogs),
            ) -> bool:
                return there() == sorted(expected)

            wait_until(is_collected, seconds=60, what=f"the collection in run {version}")


def _shown(harness: Harness) -> list[tuple[int, int, int]]:
    """Return the version, the memory in bytes, and the snapshot's time of each store."""
    stores = harness.report()["stores"]
    return sorted((s["version"], s["memory_bytes"], s["snapshot_ms"]) for s in stores)


def test_a_run_that_gave_its_rows_up_shows_none(harness: Harness, tmp_path: Path) -> None:
    with _two_runs(harness, tmp_path / "query") as (first, second):
        store = first.store(0)
        store.put(["key", 1], ["x" * 10_000])
        one = store.commit()
        first.store(one.version, one.id).abort()
        first.snapshot()
        store = first.store(one.version, one.id)
        store.metrics()  # as Spark asks at the end of a batch
        store.abort()
        ((_, _, _), (version, memory_bytes, snapshot_ms)) = _shown(harness)
        assert version == 1 and memory_bytes > 10_000 and snapshot_ms > 0
        assert harness.report()["metrics"]["disk_used_bytes"] > 0
        store = second.store(one.version, one.id)
        (gone, (version, _, snapshot_ms)) = _shown(harness)
        assert gone == (-1, 0, 0) and version == 1 and snapshot_ms > 0
        assert harness.report()["metrics"]["disk_used_bytes"] == 0, "as the last batch left it"
        store.abort()


def test_a_task_of_the_run_before_that_lingers_keeps_its_rows(
    harness: Harness, tmp_path: Path
) -> None:
    """But no longer than it has the store."""
    with _two_runs(harness, tmp_path / "query") as (first, second):
        one = _batch(first, None)
        lingers = first.store(one.version, one.id, task="lingers")
        lingers.put(["key 1", 1], ["never committed"])
        store = second.store(one.version, one.id)
        assert lingers.get(["key 1", 1]) == ["never committed"]
        assert store.get(["key 1", 1]) == ["version 1"]
        lingers.abort()
        assert not _has(first, one), "its rows outlive it"
        store.abort()
        assert _has(second, one)


def test_a_state_on_the_heap_has_room_when_such_a_task_has_ended(
    harness: Harness, tmp_path: Path
) -> None:
    """Spark tries the task of the next run again."""
    with _two_runs(harness, tmp_path / "query", _HEAP) as (first, second):
        one = _batch(first, None)
        lingers = first.store(one.version, one.id, task="lingers")
        with pytest.raises(ProviderError, match="MEMORY_EXHAUSTED"):
            second.store(one.version, one.id)
        lingers.abort()
        store = second.store(one.version, one.id)
        _has_its_rows_alone(store)
        store.abort()


def test_the_next_run_does_not_wait_for_a_flush_of_the_one_before(
    harness: Harness, tmp_path: Path
) -> None:
    with _two_runs(harness, tmp_path / "query") as (first, second):
        one = _batch(first, None)
        first.store(one.version, one.id).abort()  # proves it committed
        snapshot = _held_flush(harness, first)
        two = _batch(second, one)
        assert harness.is_holding()
        harness.let_go()
        harness.join(snapshot)
        wait_until(lambda: not _has(first, one), seconds=60, what="the end of the first run")
        _check(second, two)


@pytest.mark.parametrize("reads_first", [False, True])
def test_a_state_of_more_than_half_the_memory_goes_on_in_the_next_run(
    harness: Harness, tmp_path: Path, reads_first: bool
) -> None:
    """A store with the backend heap may drop nothing, so it fails if there is no room."""
    with _two_runs(harness, tmp_path / "query", _HEAP) as (first, second):
        one = _batch(first, None)
        if reads_first:
            read = second.read_store(one.version, one.id)
            store = second.upgrade(read, one.version, one.id)
        else:
            store = second.store(one.version, one.id)
        _has_its_rows_alone(store)
        store.abort()


def test_an_operator_that_reads_first_loads_such_a_state_from_a_snapshot(
    harness: Harness, tmp_path: Path
) -> None:
    """As an aggregation does. A snapshot is loaded whole, which failed while the old rows stayed.

    A state reader is no operator: the query keeps its rows.
    """
    with _two_runs(harness, tmp_path / "query", _HEAP) as (first, second):
        one = _batch(first, None)
        first.store(one.version, one.id).abort()  # proves it committed
        first.snapshot()
        assert list((tmp_path / "query").rglob("1*.manifest"))
        with pytest.raises(ProviderError, match="MEMORY_EXHAUSTED"):
            second.read_store(one.version, one.id, task="a reader")
        assert _has(first, one)
        read = second.read_store(one.version, one.id, task="an operator", of_run=True)
        store = second.upgrade(read, one.version, one.id)
        _has_its_rows_alone(store)
        store.abort()
        assert not _has(first, one)


def test_a_state_on_the_heap_is_loaded_when_a_flush_of_the_run_before_has_ended(
    harness: Harness, tmp_path: Path
) -> None:
    """Beside the rows of that run it has no room."""
    with _two_runs(harness, tmp_path / "query", _HEAP) as (first, second):
        one = _batch(first, None)
        first.store(one.version, one.id).abort()  # proves it committed
        snapshot = _held_flush(harness, first)
        store = Store(second, harness.name("s"))
        opening = harness.begin(
            "get_store",
            p=second.name,
            s=store.name,
            version=one.version,
            id=one.id,
            force_snapshot=False,
            load_empty=False,
        )
        wait_until(lambda: harness.waits(opening), seconds=60, what="the load that waits")
        assert harness.is_holding()
        harness.let_go()
        harness.join(opening)
        store.abort()
        harness.join(snapshot)
        assert not _has(first, one)


def test_stores_of_one_run_and_of_other_partitions_stay(harness: Harness, tmp_path: Path) -> None:
    run = str(uuid.uuid4())
    with (
        _run(harness, tmp_path / "query", run_id=run) as first,
        _run(harness, tmp_path / "query", run_id=run) as again,
        _run(harness, tmp_path / "other") as other,
        _run(harness, tmp_path / "query") as next_run,
    ):
        one = _batch(first, None)
        _batch(other, None)
        two = _batch(again, one)
        three = _batch(next_run, two)
        assert not _has(again, two)
        assert _has(first, one)
        assert _has(next_run, three)
