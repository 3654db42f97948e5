"""A flush fails on its way and runs again. The disk tier then has every change once."""

from __future__ import annotations

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
from integration.store_cases import RANGE, open_provider, write
from integration.store_model import write_spark_metadata

pytestmark = [pytest.mark.spark, millponds_own]

VALUE_BYTES = 64 * 1024  # 20 values are more than a flush gathers while seams are armed

harness = module_harness


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a new Spark checkpoint."""
    path = tmp_path / "checkpoint"
    write_spark_metadata(
        path, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
    )
    return path


def _provider(
    harness: Harness, checkpoint: Path, backend: str = "rocksdb", **options: str
) -> Provider:
    settings = {"memory.budget": "64m", "changelog.codec": "none", "backend": backend, **options}
    conf = short_conf(
        {"minDeltasForSnapshot": 1, **{f"millpond.{k}": v for k, v in settings.items()}}
    )
    conf |= {"spark.sql.shuffle.partitions": "1"}
    return harness.open(
        checkpoint / "state",
        provider_class=MILLPOND,
        schema=Schema("k bigint", "v string", multi=True),
        conf=conf,
    )


def _lists(store: Store) -> dict[int, list[str]]:
    return {k: [str(v[0])[:8] for v in store.values([k])] for k in range(20)}


def _append(store: Store, tag: str, expected: dict[int, list[str]]) -> None:
    """Append one more value to each of 20 keys."""
    for k in range(20):
        store.merge([k], [f"{tag} ".ljust(8, ".") + "x" * VALUE_BYTES])
        expected.setdefault(k, []).append(f"{tag} ".ljust(8, "."))


def _first(provider: Provider) -> dict[int, list[str]]:
    """Commit a value of the first of 20 keys. Return the values of all."""
    store = provider.store(0)
    store.put([0], ["first..."])
    store.commit()
    return {k: [] for k in range(20)} | {0: ["first..."]}


def _is_not_committed(provider: Provider, store: Store, expected: dict[int, list[str]]) -> None:
    """Check that version 2 can only be aborted, and that version 1 has the expected values."""
    with pytest.raises(ProviderError, match="STORE_CLOSED"):
        store.commit()
    store.abort()
    store = provider.read_store(1)
    assert _lists(store) == expected
    store.release()


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
@pytest.mark.parametrize("point", ["flush.write", "flush.ingest", "flush.ingested"])
def test_lists_hold_each_value_once_after_a_flush_that_failed(
    harness: Harness, checkpoint: Path, backend: str, point: str
) -> None:
    provider = _provider(harness, checkpoint, backend)
    expected: dict[int, list[str]] = {}
    for version in range(4):
        store = provider.store(version)
        if version == 1:
            provider.snapshot()  # later appends meet rows of the disk tier
        _append(store, f"batch {version}", expected)
        store.commit()
    store = provider.store(4)
    store.abort()
    # One file is in the disk tier when the next one fails.
    harness.arm(point, kind="LOCAL_DISK_FULL", first=2, last=2)
    provider.snapshot()
    assert harness.disarm() == 2, "the flush went on"
    assert not list(checkpoint.glob("state/0/0/4.manifest")), "a failed flush left a snapshot"
    store = provider.store(4)
    assert _lists(store) == expected
    _append(store, "batch 4", expected)
    store.commit()
    store = provider.store(5)
    store.abort()
    provider.snapshot()
    assert list(checkpoint.glob("state/0/0/5*.manifest"))
    provider.close()
    provider = _provider(harness, checkpoint, backend, **{"restore.warmUp": "false"})
    store = provider.read_store(5)
    assert _lists(store) == expected
    store.release()
    provider.close()


def test_a_batch_whose_spill_failed_is_not_committed(harness: Harness, checkpoint: Path) -> None:
    """A task catches the error and goes on. Its changelog would not be what the batch did."""
    provider = _provider(harness, checkpoint, **{"memory.budget": "1m"})
    expected: dict[int, list[str]] = {}
    store = provider.store(0)
    store.put([0], ["first..."])
    expected[0] = ["first..."]
    store.commit()
    store = provider.store(1)
    harness.arm(
        "flush.ingested", kind="LOCAL_DISK_FULL", first=2, last=2
    )  # the first pass writes committed rows
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        for _ in range(3):
            _append(store, "lost", {})
    harness.disarm()
    with pytest.raises(ProviderError, match="STORE_CLOSED"):
        store.merge([0], ["lost"])
    with pytest.raises(ProviderError, match="STORE_CLOSED"):
        store.commit()
    store.abort()
    store = provider.store(1)
    for i in range(3):
        _append(store, f"kept {i}", expected)
    assert int(store.metrics()["custom"]["millpondSpills"]) >= 1
    store.commit()
    # The disk tier has the lists already, with all values from before the last spill.
    store = provider.store(2)
    assert _lists(store) == expected
    _append(store, "after", expected)
    store.commit()
    store = provider.store(3)
    provider.snapshot()
    assert _lists(store) == expected
    store.abort()
    provider.close()
    provider = _provider(harness, checkpoint, **{"restore.warmUp": "false"})
    store = provider.read_store(3)
    assert _lists(store) == expected
    store.release()
    provider.close()


def test_a_batch_that_got_no_room_is_not_committed(harness: Harness, checkpoint: Path) -> None:
    """The call failed when its value was there. A task that tries again would have it twice."""
    provider = _provider(harness, checkpoint, **{"memory.budget": "1m"})
    expected = _first(provider)
    store = provider.store(1)
    harness.arm("flush.write", kind="LOCAL_DISK_FULL")
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        for _ in range(3):
            _append(store, "lost", {})
    assert harness.disarm() == 1, "the rows that are committed were not flushed"
    for _ in range(2):
        with pytest.raises(ProviderError, match="STORE_CLOSED") as refused:
            store.merge([0], ["again..."])
        assert "LOCAL_DISK_FULL" in refused.value.text, "it does not say what led to it"
    _is_not_committed(provider, store, expected)
    store = provider.store(1)
    for i in range(3):
        _append(store, f"kept {i}", expected)
    store.commit()
    store = provider.store(2)
    assert _lists(store) == expected
    store.abort()
    provider.close()


def test_a_batch_of_which_memory_alone_refused_a_row_is_not_committed(
    harness: Harness, checkpoint: Path
) -> None:
    provider = _provider(harness, checkpoint, "heap", **{"memory.budget": "1m"})
    expected = _first(provider)
    store = provider.store(1)
    with pytest.raises(ProviderError, match="MEMORY_EXHAUSTED"):
        for _ in range(3):
            _append(store, "lost", {})
    _is_not_committed(provider, store, expected)
    provider.close()


def test_a_batch_whose_log_got_no_heap_is_not_committed(harness: Harness, checkpoint: Path) -> None:
    """The value was in its list: a task that catches the error and tries again has it twice."""
    provider = _provider(harness, checkpoint)
    expected = _first(provider)
    store = provider.store(1)
    harness.arm("memory.block", kind="HEAP")
    with pytest.raises(ProviderError, match="OutOfMemoryError"):
        store.merge_blanks([0], 8 << 20)
    assert harness.disarm() == 1, "no part of the log was written"
    _is_not_committed(provider, store, expected)
    provider.close()


def test_a_family_that_is_half_erased_is_not_committed(harness: Harness, tmp_path: Path) -> None:
    """Its rows are erased some at a time. The deletes of the first ones ask for room."""
    conf = {"millpond.restore.warmUp": "false", "millpond.memory.budget": "1m"}
    provider = open_provider(harness, tmp_path / "removed", conf=conf)
    families = {"plain": Schema("k bigint", "v string")}
    rows = 20_000
    store = write(provider, 0, families)
    store.put_many([([k], ["v"]) for k in range(rows)], cf="plain")
    store.commit()
    write(provider, 1, families).abort()
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, tmp_path / "removed", conf=conf)  # its rows are on disk
    harness.arm("flush.write", kind="LOCAL_DISK_FULL", last=1000)
    store = write(provider, 1, families)
    store.put([0], ["w"], cf="plain")
    store.commit()
    store = write(provider, 2, families)
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        store.remove_cf("plain")
    harness.disarm()
    with pytest.raises(ProviderError, match="STORE_CLOSED"):
        store.commit()
    store.abort()
    store = write(provider, 2, families)
    assert len(store.scan(cf="plain")) == rows
    store.abort()
    provider.close()


def test_a_range_that_is_half_deleted_is_not_committed(harness: Harness, tmp_path: Path) -> None:
    """Its rows are deleted one by one. A delete needs memory, too."""
    provider = open_provider(harness, tmp_path / "ranged")
    families, rows = {"range": RANGE}, 20_000
    store = write(provider, 0, families)
    store.put_many([([n, ""], ["v"]) for n in range(rows)], cf="range")
    store.commit()
    store = write(provider, 1, families)
    # the first deletes get theirs
    harness.arm("memory.allocate", kind="MEMORY_EXHAUSTED", first=6, last=1000)
    with pytest.raises(ProviderError, match="MEMORY_EXHAUSTED"):
        store.delete_range([0, ""], [rows, ""], cf="range")
    harness.disarm()
    assert 0 < len(store.scan(cf="range")) < rows, "the test proves nothing"
    with pytest.raises(ProviderError, match="STORE_CLOSED") as refused:
        store.commit()
    assert "MEMORY_EXHAUSTED" in refused.value.text, "it does not say what led to it"
    store.abort()
    store = write(provider, 1, families)
    assert len(store.scan(cf="range")) == rows
    store.abort()
    provider.close()


def test_a_thread_that_outlived_its_task_spoils_no_other_batch(
    harness: Harness, checkpoint: Path
) -> None:
    provider = _provider(harness, checkpoint, **{"memory.budget": "1m"})
    expected = _first(provider)
    late = provider.store(1, task="late")
    late.merge([0], ["late...."])
    # Its flush fails when the next attempt has written.
    harness.meanwhile(
        "flush.write",
        [
            {"do": "end_task", "task": "late"},
            {"do": "get_store", "p": provider.name, "s": "next", "version": 1},
            {"do": "merge", "s": "next", "k": [0], "v": ["next...."]},
            {
                "do": "arm",
                "point": "flush.ingest",
                "kind": "LOCAL_DISK_FULL",
                "first": 1,
                "last": 1,
            },
        ],
    )
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        for _ in range(3):
            _append(late, "late", {})
    assert not [answer for answer in harness.happened() if isinstance(answer, ProviderError)]
    store = Store(provider, "next")
    store.merge([0], ["again..."])
    store.commit()
    expected[0] += ["next....", "again..."]
    store = provider.store(2)
    assert _lists(store) == expected
    store.abort()
    provider.close()


def _damaged(harness: Harness, provider: Provider) -> dict[int, list[str]]:
    """Commit version 2, whose lists began in a snapshot. Damage its one file, here and in storage.

    Return the lists.
    """
    expected: dict[int, list[str]] = {}
    for version in range(2):
        store = provider.store(version)
        if version == 1:
            provider.snapshot()
        _append(store, f"batch {version}", expected)
        store.commit()
    store = provider.store(2)
    store.abort()
    (file,) = harness.local_dir.rglob("db-*/*.sst")
    with file.open("r+b") as damaged:
        damaged.write(b"damaged " * (file.stat().st_size // 16))
    return expected


def test_a_load_that_meets_damage_while_it_replays_goes_on_without_the_snapshot(
    harness: Harness, checkpoint: Path
) -> None:
    """The end of the file is sound, so that it opens. A list that grew is read from it."""
    provider = _provider(harness, checkpoint)
    expected = _damaged(harness, provider)
    provider.close()
    provider = _provider(harness, checkpoint)
    store = provider.store(2)
    assert _lists(store) == expected
    store.abort()
    provider.close()


def test_a_flush_that_meets_damage_lets_the_store_load_anew(
    harness: Harness, checkpoint: Path
) -> None:
    """No batch reads the file: the lists that grow are in memory."""
    provider = _provider(harness, checkpoint)
    expected = _damaged(harness, provider)
    provider.snapshot()
    assert not list(checkpoint.glob("state/0/0/2*.manifest")), "the flush has not met the damage"
    store = provider.store(2)
    assert _lists(store) == expected
    store.abort()
    provider.snapshot()
    assert list(checkpoint.glob("state/0/0/2*.manifest"))
    provider.close()


def test_a_family_whose_removal_meets_damage_is_loaded_anew(
    harness: Harness, tmp_path: Path
) -> None:
    """Its rows are read to be deleted. Each attempt met the same block."""
    conf = {"millpond.restore.warmUp": "false", "minDeltasForSnapshot": 1}
    provider = open_provider(harness, tmp_path / "removed", conf=conf)
    schema = Schema("k bigint", "v string")
    store = write(provider, 0, {"plain": schema})
    for k in range(200):
        store.put([k], ["x" * 1024], cf="plain")
    store.commit()
    write(provider, 1, {"plain": schema}).abort()
    provider.snapshot()
    provider.close()
    (file,) = (tmp_path / "removed").rglob("*.sst")
    with file.open("r+b") as damaged:
        damaged.write(b"damaged " * (file.stat().st_size // 16))
    provider = open_provider(harness, tmp_path / "removed", conf=conf)
    store = write(provider, 1, {"plain": schema})
    with pytest.raises(ProviderError, match="SST_DAMAGED"):
        store.remove_cf("plain")
    store.abort()
    store = write(provider, 1, {"plain": schema})
    assert store.remove_cf("plain")
    store.commit()
    store = provider.store(2)
    assert "plain" not in store.cf_names()
    store.abort()
    provider.close()
