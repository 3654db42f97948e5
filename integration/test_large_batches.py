"""A batch many times larger than the memory commits, goes to the disk tier, and comes back.

So does one of large rows: what works at many rows in turn takes no more memory for these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.harness import (
    Harness,
    Numbered,
    Provider,
    ProviderError,
    Schema,
    Store,
    millponds_own,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.store_model import write_spark_metadata

pytestmark = [pytest.mark.spark, millponds_own]

MIB = 1 << 20
SCHEMA = Schema("k bigint", "v string")


@dataclass(frozen=True)
class Size:
    """The size of a batch, and the memory for it."""

    batch_bytes: int
    row_bytes: int
    budget_bytes: int
    heap_bytes: int

    @property
    def rows(self) -> int:
        """Return the number of rows of the batch."""
        return self.batch_bytes // self.row_bytes


SMALL = Size(batch_bytes=24 * MIB, row_bytes=1000, budget_bytes=2 * MIB, heap_bytes=512 * MIB)
ROWS_OF_A_MIB = Size(
    batch_bytes=128 * MIB, row_bytes=MIB, budget_bytes=16 * MIB, heap_bytes=512 * MIB
)
LARGE = Size(batch_bytes=2048 * MIB, row_bytes=4000, budget_bytes=256 * MIB, heap_bytes=1024 * MIB)


def _harness(work_dir: Path, size: Size) -> Harness:
    return Harness(work_dir, heap=f"{size.heap_bytes // MIB}m")


def _open(
    harness: Harness, checkpoint: Path, size: Size, partition: int = 0, **options: str
) -> Provider:
    options = {"memory.budget": str(size.budget_bytes), **options}
    conf = short_conf(
        {"minDeltasForSnapshot": 1, **{f"millpond.{k}": v for k, v in options.items()}}
    )
    conf |= {"spark.sql.shuffle.partitions": "2"}
    return harness.open(
        checkpoint / "state", provider_class=MILLPOND, schema=SCHEMA, conf=conf, partition=partition
    )


def _most_bytes(harness: Harness) -> int:
    """Return the most resident memory that the JVM ever had."""
    status = Path(f"/proc/{harness.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


@contextmanager
def _growth(harness: Harness, at_most: int) -> Iterator[None]:
    """Check that the JVM's resident memory grows by so many bytes at most, at any time."""
    before = _most_bytes(harness)
    yield
    grown = _most_bytes(harness) - before
    assert grown <= at_most, f"{grown // MIB} MiB"


@pytest.fixture(scope="module")
def rows_of_a_mib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint whose version 1 has `ROWS_OF_A_MIB`, in a snapshot. Nobody changes it."""
    work_dir = tmp_path_factory.mktemp("rows")
    checkpoint = work_dir / "checkpoint"
    write_spark_metadata(
        checkpoint, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
    )
    harness = _harness(work_dir, ROWS_OF_A_MIB)
    provider = _open(harness, checkpoint, ROWS_OF_A_MIB)
    store = provider.store(0)
    store.put_numbered(Numbered(ROWS_OF_A_MIB.rows, "first", MIB))
    store.commit()
    provider.store(1).abort()  # proves version 1
    provider.snapshot()
    assert (checkpoint / "state/0/0/1.manifest").exists()
    harness.stop()
    return checkpoint


def _custom(store: Store, name: str) -> int:
    return int(store.metrics()["custom"][name])


@pytest.mark.deep
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["24m", "2g"])
def test_a_batch_larger_than_memory_comes_back(tmp_path: Path, size: Size) -> None:
    """Commit, kill -9, replay, flush, snapshot, kill -9, restore. Memory never holds the batch."""
    checkpoint = tmp_path / "checkpoint"
    write_spark_metadata(
        checkpoint, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
    )
    first = [
        Numbered(size.rows, "first", size.row_bytes),
        Numbered(size.rows, "again", size.row_bytes // 2, first=1, step=7),
        Numbered(size.rows, "", first=2, step=11),
    ]
    second = [
        Numbered(size.rows, "later", 100, first=3, step=101),
        Numbered(size.rows, "", first=5, step=103),
    ]

    harness = _harness(tmp_path, size)
    store = _open(harness, checkpoint, size).store(0)
    for layer in first:
        store.put_numbered(layer)
    assert store.commit().version == 1
    assert _custom(store, "millpondSpills") > 2
    harness.kill()

    # Without a snapshot, the changelog alone brings the batch back.
    harness = _harness(tmp_path, size)
    provider = _open(harness, checkpoint, size)
    store = provider.store(1)
    count = store.check_numbered(first)
    assert store.keys() == count
    assert store.metrics()["memory_bytes"] <= size.budget_bytes * 5 // 4
    for layer in second:
        store.put_numbered(layer)
    assert store.commit().version == 2
    store = provider.store(2)  # proves version 2
    store.check_numbered([*first, *second])
    store.abort()
    provider.snapshot()
    assert (checkpoint / "state/0/0/2.manifest").exists()
    most_bytes = _most_bytes(harness)
    harness.kill()

    (checkpoint / "state/0/0/1.changelog").unlink()
    harness = _harness(tmp_path, size)
    store = _open(harness, checkpoint, size).store(2)
    store.check_numbered([*first, *second])
    store.abort()
    harness.stop()
    assert most_bytes < size.heap_bytes + 2 * size.budget_bytes + 600 * MIB


@pytest.mark.deep
def test_two_large_batches_come_back_side_by_side(tmp_path: Path) -> None:
    """Two stores that replay in parallel share one budget."""
    checkpoint = tmp_path / "checkpoint"
    write_spark_metadata(
        checkpoint, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
    )
    layer = Numbered(SMALL.rows, "first", SMALL.row_bytes)
    harness = _harness(tmp_path, SMALL)
    for partition in (0, 1):
        store = _open(harness, checkpoint, SMALL, partition).store(0)
        store.put_numbered(layer)
        assert store.commit().version == 1
    harness.kill()

    harness = _harness(tmp_path, SMALL)
    providers = [_open(harness, checkpoint, SMALL, partition) for partition in (0, 1)]
    names = [harness.name("s") for _ in providers]
    begun = [
        harness.begin(
            "get_store", p=p.name, s=s, version=1, id=None, force_snapshot=False, load_empty=False
        )
        for p, s in zip(providers, names, strict=True)
    ]
    for name in begun:
        harness.join(name)
    stores = [Store(p, s) for p, s in zip(providers, names, strict=True)]
    for store in stores:
        store.check_numbered([layer])
    used_bytes = [store.metrics()["memory_bytes"] for store in stores]
    assert sum(used_bytes) <= SMALL.budget_bytes * 5 // 4
    for store in stores:
        store.abort()
    harness.stop()


def test_the_warm_up_of_large_rows_brings_in_a_few_at_once(
    tmp_path: Path, rows_of_a_mib: Path
) -> None:
    """It looks at the budget between its steps."""
    size = ROWS_OF_A_MIB
    harness = _harness(tmp_path, size)
    provider = _open(harness, rows_of_a_mib, size)
    harness.hold("warm-up.step")
    with _growth(harness, at_most=size.budget_bytes + 96 * MIB):
        store = provider.read_store(1)  # a batch would give memory back when it begins
        wait_until(harness.is_holding, seconds=60, what="the warm-up")
    harness.let_go()
    store.release()
    provider.close()
    harness.stop()


@pytest.mark.deep
def test_large_rows_are_refused_before_they_fill_the_memory(
    tmp_path: Path, rows_of_a_mib: Path
) -> None:
    """With the backend heap all rows are brought in before the store is used."""
    size = ROWS_OF_A_MIB
    harness = _harness(tmp_path, size)
    provider = _open(harness, rows_of_a_mib, size, backend="heap")
    with (
        _growth(harness, at_most=size.budget_bytes + 96 * MIB),
        pytest.raises(ProviderError, match="MEMORY_EXHAUSTED"),
    ):
        provider.read_store(1)
    provider.close()
    harness.stop()
