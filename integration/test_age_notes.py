"""The notes by which rows end are on the local disk. A disk that fails once ends no query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.harness import Harness, ProviderError, millponds_own
from integration.provider import Numbered, Schema, Timed
from integration.store_cases import open_provider
from integration.test_point_reads import PLAIN, key
from integration.test_pressure_faults import leave_free, small_disk

pytestmark = [pytest.mark.spark, millponds_own]

_BEGUN_MS, _TTL_MS = 1_700_000_000_000, 10_000
disk = small_disk


@pytest.fixture(scope="module")
def harness(own_harness: Harness) -> Harness:
    return own_harness


def _at(ms: int) -> Timed:
    return Timed(_BEGUN_MS + ms, _TTL_MS)


def test_notes_that_were_deleted(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    store = provider.store(0, timed=_at(0))
    store.put_many([(key(i), ["old"]) for i in range(500)])
    store.commit()
    store = provider.store(1, timed=_at(1))
    store.put(key(1000), ["new"])
    store.commit()
    notes = list(harness.local_dir.rglob("ages-*"))
    assert notes
    for file in notes:
        file.unlink()
    with pytest.raises(ProviderError, match="LOCAL_FILES_LOST"):
        provider.store(2, timed=_at(_TTL_MS))
    store = provider.store(2, timed=_at(_TTL_MS))
    assert store.scan() == [(key(1000), ["new"])]
    store.commit()
    provider.close()


def test_large_rows_that_get_their_first_age_keep_to_the_budget(
    harness: Harness, tmp_path: Path
) -> None:
    """A time to live is switched on: the batch that begins writes all rows."""
    rows, row_bytes, budget_bytes = 64, 1 << 18, 2 << 20
    provider = open_provider(
        harness,
        tmp_path,
        schema=Schema("k bigint", "v string"),
        operator="dedupe",
        conf={"millpond.memory.budget": budget_bytes},
    )
    store = provider.store(0)
    store.put_numbered(Numbered(rows, "row", row_bytes))
    store.commit()
    store = provider.store(1, timed=_at(0))
    store.commit()
    # so many that none of them is much larger than the budget
    spills = store.metrics()["custom"]["millpondSpills"]
    assert spills >= rows * row_bytes // (2 * budget_bytes)
    store = provider.store(2, timed=_at(_TTL_MS))
    assert store.scan() == []
    store.abort()
    provider.close()


@pytest.mark.deep
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, disk: Path) -> None:
    harness = Harness(tmp_path)  # whose first store decides where the local files are
    conf = {"millpond.localDir": str(disk)}
    checkpoint = tmp_path / "checkpoint"
    provider = open_provider(harness, checkpoint, schema=PLAIN, operator="dedupe", conf=conf)
    for version, numbers in enumerate((range(1), range(1, 20_000))):
        store = provider.store(version, timed=_at(0))
        store.put_many([(key(i), ["row"]) for i in numbers])
        store.commit()
    ballast = leave_free(disk, 0)
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        provider.store(2, timed=_at(0))
    ballast.unlink()
    store = provider.store(2, timed=_at(0))
    assert len(store.scan()) == 20_000
    store.commit()
    store = provider.store(3, timed=_at(_TTL_MS))
    assert store.scan() == []
    store.abort()
    provider.close()
    harness.stop()


def test_another_error_of_the_disk_is_not_called_full(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    store = provider.store(0, timed=_at(0))
    store.put(key(0), ["row"])
    store.commit()
    folders = [path for path in harness.local_dir.rglob("g[0-9]*") if path.is_dir()]
    taken = [folder / f"ages-{n}" for folder in folders for n in range(100)]
    for path in taken:
        path.mkdir(exist_ok=True)
    store = provider.store(1, timed=_at(1))
    store.put_many([(key(i), ["row"]) for i in range(1, 500)])
    store.commit()
    with pytest.raises(ProviderError, match=r"STORAGE_UNAVAILABLE.*localDir"):
        provider.store(2, timed=_at(1))
    for path in taken:
        path.rmdir()
    store = provider.store(2, timed=_at(1))
    assert len(store.scan()) == 500
    store.commit()
    provider.close()


@pytest.mark.deep
@pytest.mark.parametrize("free_bytes", [30_000, 100_000])
def test_a_disk_that_is_full_while_a_batch_writes(
    tmp_path: Path, disk: Path, free_bytes: int
) -> None:
    """The first write of the notes fails midway, or the second. The caller goes on all the same."""
    harness = Harness(tmp_path)  # whose first store decides where the local files are
    conf = {"millpond.localDir": str(disk)}
    checkpoint = tmp_path / "checkpoint"
    provider = open_provider(harness, checkpoint, schema=PLAIN, operator="dedupe", conf=conf)
    store = provider.store(0, timed=_at(0))
    ballast = leave_free(disk, free_bytes)
    with pytest.raises(ProviderError, match="LOCAL_DISK_FULL"):
        store.put_many([(key(i), ["row"]) for i in range(9000)])
    ballast.unlink()
    store.put_many([(key(i), ["row"]) for i in range(9000)])
    store.commit()
    store = provider.store(1, timed=_at(_TTL_MS - 1000))
    assert len(store.scan()) == 9000
    store.commit()
    store = provider.store(2, timed=_at(_TTL_MS))
    assert store.scan() == []
    store.abort()
    provider.close()
    harness.stop()


@pytest.mark.parametrize(
    "conf",
    [{}, {"millpond.numKeys.exact": "false", "millpond.memory.budget": "64k"}],
    ids=["counted", "estimated"],
)
def test_rows_that_come_and_go_leave_few_notes(
    harness: Harness, tmp_path: Path, conf: Mapping[str, str]
) -> None:
    """A watermark removes most rows long before they are old. Their notes stayed until then. They
    stayed also where nobody counts the rows, since a write reads no row that is on disk.
    """
    schema = Schema("k bigint", "v string")
    provider = open_provider(harness, tmp_path, schema=schema, operator="dedupe", conf=conf)
    rows, batches = 5000, 40
    before = set(harness.local_dir.rglob("ages-*"))
    most = 0
    for batch in range(batches):
        store = provider.store(batch, timed=_at(batch))
        first = batch * rows
        store.put_numbered(Numbered(first + rows, "row", first=first))
        if batch:
            store.put_numbered(Numbered(first, "", first=first - rows))
        store.commit()
        notes = [path for path in harness.local_dir.rglob("ages-*") if path not in before]
        most = max(most, sum(path.stat().st_size for path in notes))
    note_bytes = 6 + 16  # slot, length; the key as UnsafeRow
    assert 0 < most <= (50_000 + 4 * rows + 2 * rows) * note_bytes, most
    assert most < rows * batches * note_bytes / 2, "the test proves nothing"
    store = provider.store(batches, timed=_at(batches))
    assert len(store.scan()) == rows
    store.commit()
    store = provider.store(batches + 1, timed=_at(_TTL_MS + 2000))
    assert store.scan() == []
    store.commit()
    provider.close()


def test_a_guess_that_is_too_low_does_not_note_all_rows_again_and_again(
    harness: Harness, tmp_path: Path
) -> None:
    """RocksDB counts a delete of a key that it never had as a key less, until it compacts."""
    schema = Schema("k bigint", "v string")
    conf = {"millpond.numKeys.exact": "false", "millpond.memory.budget": "8m"}
    provider = open_provider(harness, tmp_path, schema=schema, operator="dedupe", conf=conf)
    before = set(harness.local_dir.rglob("ages-*"))
    rows, deletes, batches = 80_000, 79_000, 8
    noted: set[Path] = set()
    low = 0
    for batch in range(batches):
        store = provider.store(batch, timed=_at(batch))
        first = rows * (batch + 1)
        if batch == 0:
            store.put_numbered(Numbered(rows, "row", length=200))
        else:
            store.put_numbered(Numbered(first + deletes, "", first=first))
        store.commit()
        provider.snapshot()
        low += 50_000 + 4 * store.metrics()["keys"] < rows
        noted |= set(harness.local_dir.rglob("ages-*")) - before
    assert low >= 2, "the test proves nothing"
    assert len(noted) <= 2, noted
    provider.close()
